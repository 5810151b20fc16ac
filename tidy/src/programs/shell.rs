//! Finds the words of a shell script that stand in the place of a command.
//!
//! A small part of bash's grammar: comments, quotes, expansions, here-documents, lists and pipes,
//! compound commands, functions, arrays, redirections. Code in substitutions is read too; what is
//! expanded stands as [`EXPANDED`].

/// The character that stands in a word for text that the shell inserts when it runs.
const EXPANDED: char = '\u{1}';
/// Words of shell after which a command comes.
const BEFORE_COMMANDS: &[&str] = &[
    "if", "then", "else", "elif", "do", "while", "until", "!", "{", "time", "fi", "done", "}",
    "esac",
];
/// Commands of shell that run the command which their arguments name.
const WRAPPERS: &[&str] = &["exec", "command", "timeout", "nice", "env", "here", "taskset"];

/// The programs and functions of a shell script: lines and names.
#[derive(Default)]
pub(super) struct Script {
    pub(super) commands: Vec<(usize, String)>,
    pub(super) functions: Vec<String>,
}

pub(super) fn read(text: &str) -> Script {
    let mut reader = Reader {
        chars: text.chars().collect(),
        at: 0,
        documents: Vec::new(),
        script: Script::default(),
    };
    while reader.at < reader.chars.len() {
        reader.list();
        // A closing parenthesis without an opening one.
        reader.at += 1;
    }
    reader.script
}

struct Reader {
    chars: Vec<char>,
    at: usize,
    /// The ends of the here-documents that begin on the next line.
    documents: Vec<String>,
    script: Script,
}

impl Reader {
    fn peek(&self, ahead: usize) -> char {
        self.chars.get(self.at + ahead).copied().unwrap_or('\0')
    }

    fn line(&self) -> usize {
        1 + self.chars[..self.at].iter().filter(|c| **c == '\n').count()
    }

    /// Reads commands of a shell script up to an unmatched `)` or the end.
    fn list(&mut self) {
        // In the place of a command; behind a wrapper, whose options come first.
        let (mut start, mut wrapped) = (true, false);
        let mut patterns = false;
        while self.at < self.chars.len() {
            match self.peek(0) {
                ' ' | '\t' => self.at += 1,
                '\\' if self.peek(1) == '\n' => self.at += 2,
                '\n' => {
                    self.at += 1;
                    self.skip_documents();
                    (start, wrapped) = (true, false);
                }
                '#' => self.skip_while(|c| c != '\n'),
                ';' if self.peek(1) == ';' => {
                    self.at += 2;
                    patterns = true;
                }
                ';' | '&' | '|' => {
                    self.at += 1;
                    (start, wrapped) = (true, false);
                }
                ')' => return,
                '(' => {
                    self.at += 1;
                    self.list();
                    self.at += 1;
                }
                '<' | '>' => self.redirection(),
                _ => {
                    if patterns && !self.is_word("esac") {
                        self.skip_pattern();
                        (start, patterns) = (true, false);
                        continue;
                    }
                    patterns = false;
                    let line = self.line();
                    let word = self.word();
                    if word == "in" && !start {
                        // Of `case`; that of `for` is followed by words alone.
                        patterns = self.is_case(line);
                    }
                    (start, wrapped) = self.place(start, wrapped, line, word);
                }
            }
        }
    }

    /// Records a word of a shell script by its place. Returns the kind of the next place.
    fn place(&mut self, start: bool, wrapped: bool, line: usize, word: String) -> (bool, bool) {
        let plain = !word.contains(EXPANDED) && !word.is_empty();
        let digit = |c: char| c.is_ascii_digit();
        if wrapped
            && (!plain
                || word.starts_with(['-', '+'])
                || word.starts_with(digit)
                || word.contains('='))
        {
            return (false, true);
        }
        if !start && !wrapped {
            return (false, false);
        }
        if self.peek(0) == '(' && self.peek(1) == ')' {
            self.script.functions.push(word);
            self.at += 2;
            return (true, false);
        }
        if word.ends_with('=') && self.peek(0) == '(' {
            self.skip_array();
            return (true, false);
        }
        let name = word.split(['=', '[']).next().unwrap_or_default();
        let assigned =
            word.contains('=') && name.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '+');
        if assigned || BEFORE_COMMANDS.contains(&&*word) {
            return (true, false);
        }
        if word == "[[" {
            self.skip_test();
            return (false, false);
        }
        if plain && !["for", "case", "select", "function", "]]"].contains(&&*word) {
            self.script.commands.push((line, word.clone()));
        }
        (false, WRAPPERS.contains(&&*word))
    }

    /// True if the line of the shell script, up to here, has `case` in it.
    fn is_case(&self, line: usize) -> bool {
        let text: String = self.chars[..self.at].iter().collect();
        text.lines().nth(line - 1).is_some_and(|l| l.split_whitespace().any(|w| w == "case"))
    }

    fn is_word(&self, word: &str) -> bool {
        word.chars().enumerate().all(|(i, c)| self.peek(i) == c)
    }

    fn skip_while(&mut self, more: impl Fn(char) -> bool) {
        while self.at < self.chars.len() && more(self.peek(0)) {
            self.at += 1;
        }
    }

    /// Skips one pattern of `case` in a shell script, including its `)`.
    fn skip_pattern(&mut self) {
        while self.at < self.chars.len() && self.peek(0) != ')' {
            if matches!(self.peek(0), '\'' | '"' | '$' | '\\') {
                self.word();
            } else {
                self.at += 1;
            }
        }
        self.at += 1;
    }

    fn skip_array(&mut self) {
        self.at += 1;
        while self.at < self.chars.len() && self.peek(0) != ')' {
            if self.peek(0).is_whitespace()
                || matches!(self.peek(0), ';' | '|' | '&' | '<' | '>' | '(')
            {
                self.at += 1;
            } else {
                self.word();
            }
        }
        self.at += 1;
    }

    fn skip_test(&mut self) {
        while self.at < self.chars.len() && !self.is_word("]]") {
            if self.peek(0).is_whitespace()
                || matches!(self.peek(0), '|' | '&' | '<' | '>' | '(' | ')' | ';')
            {
                self.at += 1;
            } else {
                self.word();
            }
        }
        self.at += 2;
    }

    fn skip_documents(&mut self) {
        for end in std::mem::take(&mut self.documents) {
            loop {
                let begin = self.at;
                self.skip_while(|c| c != '\n');
                let line: String = self.chars[begin..self.at].iter().collect();
                self.at += 1;
                if line.trim_start() == end || self.at >= self.chars.len() {
                    break;
                }
            }
        }
    }

    fn redirection(&mut self) {
        let first = self.peek(0);
        if self.peek(1) == '(' {
            self.at += 2;
            self.list();
            self.at += 1;
            return;
        }
        let document = first == '<' && self.peek(1) == '<' && self.peek(2) != '<';
        self.skip_while(|c| matches!(c, '<' | '>' | '&' | '|'));
        self.skip_while(|c| c == ' ');
        let begin = self.at;
        if !matches!(self.peek(0), '<' | '>' | '\n') {
            self.word();
        }
        if document {
            let end: String =
                self.chars[begin..self.at].iter().filter(|c| !"'\"-\\".contains(**c)).collect();
            self.documents.push(end);
        }
    }

    /// Reads one word of a shell script, with [`EXPANDED`] for the parts that the shell expands and
    /// for quoted ones.
    fn word(&mut self) -> String {
        let mut word = String::new();
        while self.at < self.chars.len() {
            match self.peek(0) {
                c if c.is_whitespace() || matches!(c, ';' | '&' | '|' | '(' | ')' | '<' | '>') => {
                    break;
                }
                '\\' => {
                    word.push(self.peek(1));
                    self.at += 2;
                }
                '\'' => {
                    self.at += 1;
                    self.skip_while(|c| c != '\'');
                    self.at += 1;
                    word.push(EXPANDED);
                }
                '"' => {
                    self.quoted();
                    word.push(EXPANDED);
                }
                '$' => {
                    self.expansion();
                    word.push(EXPANDED);
                }
                c => {
                    word.push(c);
                    self.at += 1;
                }
            }
        }
        word
    }

    fn quoted(&mut self) {
        self.at += 1;
        while self.at < self.chars.len() && self.peek(0) != '"' {
            match self.peek(0) {
                '\\' => self.at += 2,
                '$' => self.expansion(),
                _ => self.at += 1,
            }
        }
        self.at += 1;
    }

    fn expansion(&mut self) {
        self.at += 1;
        match (self.peek(0), self.peek(1)) {
            ('(', '(') => {
                while self.at < self.chars.len() && !self.is_word("))") {
                    self.at += 1;
                }
                self.at += 2;
            }
            ('(', _) => {
                self.at += 1;
                self.list();
                self.at += 1;
            }
            ('{', _) => {
                self.at += 1;
                while self.at < self.chars.len() && self.peek(0) != '}' {
                    match self.peek(0) {
                        '$' => self.expansion(),
                        '\\' => self.at += 2,
                        _ => self.at += 1,
                    }
                }
                self.at += 1;
            }
            ('\'', _) => {
                self.at += 1;
                self.skip_while(|c| c != '\'');
                self.at += 1;
            }
            (c, _) if c.is_alphanumeric() || c == '_' => {
                self.skip_while(|c| c.is_alphanumeric() || c == '_')
            }
            // $@, $?, $! and their like; a dollar at the end of a pattern is itself.
            (c, _) if "@*#?!-$".contains(c) => self.at += 1,
            _ => {}
        }
    }
}

#[test]
fn commands_are_found_where_they_stand() {
    let script = r#"
# ip in a comment
a() { one "$(two x)" | three 'four' && five; }   # six
for x in seven $(eight); do nine; done
case $x in ten | "$(true)") eleven ;; twelve) y=1 thirteen ;; esac
cat <<END
fourteen
END
[[ $x == fifteen && -n $y ]] && timeout 5 "$z" sixteen
command -v seventeen >/dev/null || exit $((1 + x))
list=(eighteen "$(nineteen)") w=$(twenty <(twenty_one))
if ! twenty_two; then ${x:-$(twenty_three)} not; fi >twenty_four
"#;
    let read = read(script);
    let names: Vec<&str> = read.commands.iter().map(|(_, name)| name.as_str()).collect();
    let expected = [
        "two",
        "one",
        "three",
        "five",
        "eight",
        "nine",
        "true",
        "eleven",
        "thirteen",
        "cat",
        "timeout",
        "sixteen",
        "command",
        "seventeen",
        "exit",
        "nineteen",
        "twenty_one",
        "twenty",
        "twenty_two",
        "twenty_three",
    ];
    let sorted = |list: &[&str]| {
        list.iter().map(|s| (*s).to_owned()).collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(sorted(&names), sorted(&expected));
    assert_eq!(read.functions, ["a"]);
    assert_eq!(
        read.commands.iter().find(|(_, name)| name == "nineteen").map(|(line, _)| *line),
        Some(11)
    );
}
