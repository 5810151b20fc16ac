//! The rule that traits which wrappers implement by calling an inner value have no default methods.
//! A wrapper that forgot a method would act otherwise than the inner value, and the compiler would
//! not say so.

use crate::report;
use crate::source::{closing, files, line_of, words};

/// The traits of drivers and devices that wrappers implement, and their files.
const WRAPPED: &[(&str, &str)] = &[
    ("Datagrams", "crates/proto/src/datagrams.rs"),
    ("TimedDatagrams", "crates/proto/src/datagrams.rs"),
    ("Transport", "crates/proto/src/node/transport.rs"),
    ("Host", "crates/proto/src/node/host.rs"),
    ("SystemTransport", "crates/sprat/src/transport.rs"),
    ("Device", "crates/proto/src/device.rs"),
    ("Driver", "crates/sprat/src/driver.rs"),
    ("Nic", "crates/sys/src/nic.rs"),
];

#[test]
fn what_is_wrapped_has_no_defaults() {
    let files = files();
    let mut wrong = Vec::new();
    for (name, path) in WRAPPED {
        let code = files.iter().find(|f| f.path == *path).map_or_else(String::new, |f| f.code());
        let Some(at) = code.find(&format!("pub trait {name}")) else {
            wrong.push(format!("{path}: no trait {name}"));
            continue;
        };
        let open = at + code[at..].find('{').unwrap_or_default();
        let body = &code[open + 1..closing(&code, open)];
        for method in words(body, "fn") {
            if body[method..]
                .find(['{', ';'])
                .is_some_and(|end| body.as_bytes()[method + end] == b'{')
            {
                wrong.push(format!(
                    "{path}:{}: a default of {name}",
                    line_of(&code, open + 1 + method)
                ));
            }
        }
    }
    report("defaults that a wrapper can forget:", &wrong);
}
