//! Tests of `sprat completions` and `sprat man`.

use std::fs;

use crate::cluster::{errors, run, text};

#[test]
fn completions_know_the_commands_and_their_options() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = run(&["completions", shell]);
        assert!(output.status.success(), "{shell}: {}", errors(&output));
        let script = text(&output);
        for word in ["scan", "status", "read-throughput", "insecure-network"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    assert_eq!(run(&["completions", "ksh"]).status.code(), Some(2));
}

#[test]
fn each_command_has_a_manual_page() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let pages = folder.path().join("man1");
    let output = run(&["man", &pages.to_string_lossy()]);
    assert!(output.status.success(), "{}", errors(&output));
    for page in
        ["sprat", "sprat-scan", "sprat-table-create", "sprat-bench-echo", "sprat-rdma-rping"]
    {
        let page = fs::read_to_string(pages.join(format!("{page}.1"))).expect(page);
        assert!(
            page.contains(".SH SYNOPSIS")
                && (page.contains("Example") || page.contains("First steps")),
            "{page}"
        );
    }
    assert!(!pages.join("sprat-perf.1").exists(), "hidden commands have no page");
    let output = run(&["man", "/dev/null/man1"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(errors(&output).contains("/dev/null/man1"), "{}", errors(&output));
}
