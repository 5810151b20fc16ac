//! What valgrind says of a program that has ended: which descriptors are open.
//!
//! Each is told by a paragraph that names the functions by which it came to be. Always allowed is what the libraries make once
//! for a process: the engine, and rdma_cm's devices. What the program does not give back itself is its own business, and stands
//! in its row.

/// Made once for a process, and kept.
const KEPT: [&str; 2] = ["sprat_verbs::engine::Engine::get", "sprat_verbs::cm::devices::"];

/// Only what is expected is left of what our libraries made.
///
/// # Errors
/// The paragraph about something else.
pub(crate) fn expected(text: &str, leaves: &[&str]) -> Result<(), String> {
    let paragraphs = paragraphs(text);
    // Standard input is among the open ones in any case: nothing at all would mean that nobody looked.
    if !paragraphs.iter().any(|p| p.starts_with("FILE DESCRIPTORS")) {
        return Err("valgrind tells of no descriptors".to_owned());
    }
    for paragraph in paragraphs {
        // A connection that has ended may still be saying so to its peer. That none stays is tests/clean's to find.
        let socket = paragraph.starts_with("Open AF_INET");
        let open = paragraph.starts_with("Open ")
            && !socket
            && !paragraph.contains("<inherited from parent>");
        let known = KEPT.iter().chain(leaves).any(|function| paragraph.contains(function));
        if open && !known {
            return Err(format!("leaves something behind:\n{paragraph}"));
        }
    }
    Ok(())
}

/// What valgrind says, without the numbers before each line.
fn paragraphs(text: &str) -> Vec<String> {
    let mut all = vec![String::new()];
    for line in text.lines().filter_map(|line| line.strip_prefix("==")) {
        let said =
            line.split_once("==").map_or("", |(_, said)| said.strip_prefix(' ').unwrap_or(said));
        // The first descriptor follows the headline at once.
        if said.is_empty() || said.starts_with("Open ") {
            all.push(String::new());
        }
        if let Some(last) = all.last_mut().filter(|_| !said.is_empty()) {
            last.push_str(said);
            last.push('\n');
        }
    }
    all
}
