//! Checks valgrind's report of the descriptors that a program leaves open.
//!
//! Each paragraph names the functions that opened a descriptor. Descriptors that the libraries open
//! once for a process are always allowed: those of the engine and of rdma_cm's devices. A row lists
//! what its program itself does not close.

/// Functions of this library whose descriptors stay open for the life of the process.
const KEPT: [&str; 2] = ["sprat_verbs::engine::Engine::get", "sprat_verbs::cm::devices::"];

/// Checks that our libraries left open only the descriptors that a test row expects.
///
/// # Errors
/// The paragraph of another descriptor.
pub(crate) fn expected(text: &str, leaves: &[&str]) -> Result<(), String> {
    let paragraphs = paragraphs(text);
    // Standard input is always among the open descriptors: an empty report means that valgrind did
    // not look.
    if !paragraphs.iter().any(|p| p.starts_with("FILE DESCRIPTORS")) {
        return Err("valgrind tells of no descriptors".to_owned());
    }
    for paragraph in paragraphs {
        // A connection that has ended may still be telling its peer. tests/clean checks that none
        // stays.
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

/// The paragraphs of valgrind's output, without the process id before each line.
fn paragraphs(text: &str) -> Vec<String> {
    let mut all = vec![String::new()];
    for line in text.lines().filter_map(|line| line.strip_prefix("==")) {
        let said =
            line.split_once("==").map_or("", |(_, said)| said.strip_prefix(' ').unwrap_or(said));
        // The first descriptor follows the headline without a blank line.
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
