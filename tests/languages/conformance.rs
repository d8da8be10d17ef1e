//! The recorded exchanges of packages/conformance, played to each client that is here.

use std::process::{Command, Output};

use crate::{LANGUAGES, installed, root, worker};

/// It shows how many there are.
const DOCUMENT: &str = include_str!("../../docs/clients.md");
/// One that every client passes.
const EXCHANGE: &str = r#"[{"name": "one", "why": "", "nodes": 1, "ttl_ms": 8000, "play": [
    {"do": "acquire job 0"},
    {"node": 0, "gets": "LOCK.ACQUIRE job <a> 8000 ...", "replies": 7}, {"says": "7"},
    {"do": "release"}, {"node": 0, "gets": "LOCK.RELEASE job <a>", "replies": 1},
    {"says": "true"}, {"do": "valid"}, {"says": "false"}
]}]"#;

fn play(command: &Command, folder: &std::path::Path) -> Output {
    let mut play = Command::new(installed("python/bin/python"));
    play.arg("-B").arg(folder.join("run.py")).arg(command.get_program()).args(command.get_args());
    play.output().expect("python is installed")
}

#[test]
fn every_client_passes_the_recorded_exchanges() {
    for language in LANGUAGES {
        let (command, _folder) = worker(language);
        let output = play(&command, &root().join("packages/conformance"));
        let said = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{language:?}:\n{said}{errors}");
        let count = said.lines().last().expect("it says how many pass");
        assert!(count.ends_with(" exchanges") && DOCUMENT.contains(count), "{language:?}: {count}");
    }
}

#[test]
fn a_client_that_departs_from_an_exchange_fails_it() {
    let folder = tempfile::tempdir().expect("the folder for temporary files can be written");
    let kept = root().join("packages/conformance");
    std::fs::copy(kept.join("run.py"), folder.path().join("run.py")).expect("the folder is ours");
    let (command, _files) = worker(LANGUAGES[0]);
    // What is not sent, what is not said, and what is sent and not recorded.
    for (right, wrong, says) in [
        ("LOCK.RELEASE job <a>", "LOCK.RELEASE job <b>", "and should get LOCK.RELEASE job <b>"),
        (r#"{"says": "7"}"#, r#"{"says": "8"}"#, "'7', and should say '8'"),
        (
            r#"{"do": "valid"}, {"says": "false"}"#,
            r#"{"do": "acquire job 0"}"#,
            "should get nothing",
        ),
    ] {
        assert!(EXCHANGE.contains(right), "{right}");
        for (text, passes) in [(EXCHANGE.to_owned(), true), (EXCHANGE.replace(right, wrong), false)]
        {
            std::fs::write(folder.path().join("exchanges.json"), text).expect("the folder is ours");
            let output = play(&command, folder.path());
            let said = String::from_utf8_lossy(&output.stdout);
            assert_eq!(output.status.success(), passes, "{wrong}:\n{said}");
            assert!(passes || said.contains(says), "{says}:\n{said}");
        }
    }
}
