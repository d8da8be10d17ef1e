//! How the command reads its arguments and its environment, before it asks any node.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;

use crate::cli::{NO_TOKEN, fails, lockmod, succeeds, text};
use crate::nodes;
use crate::screen::Screen;

/// Regression: it waited for the lock first.
#[test]
fn a_command_that_is_not_there_is_told_before_the_lock_is_free() {
    let nodes = nodes(1);
    succeeds(&nodes, &["acquire", "job", "--ttl", "1h"]);
    for (command, code) in [("no-such-command", 127), ("/etc", 126)] {
        let said = fails(&nodes, &["run", "job", "--wait", "1h", "--", command], code);
        assert!(said.contains(command), "{said}");
    }
}

/// Regression: the error named only the flag, although none was typed.
#[test]
fn what_is_missing_is_named_with_its_variable() {
    let mut status = lockmod(&[], &["status", "--nodes", "redis://h"]);
    status.env("LOCKMOD_KEY", "key.pem");
    let output = status.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(said.contains("--cert <FILE> (or LOCKMOD_CERT)"), "{said}");
}

/// Regression: `LOCKMOD_CACERT=` counted as a file without a name.
#[test]
fn an_empty_variable_counts_as_one_that_is_not_set() {
    let nodes = nodes(1);
    let mut list = lockmod(&nodes, &["list"]);
    for name in ["LOCKMOD_CACERT", "LOCKMOD_CERT", "LOCKMOD_KEY"] {
        list.env(name, "");
    }
    let output = list.output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let mut list = lockmod(&[], &["list"]);
    let said = text(&list.env("LOCKMOD_NODES", "").output().unwrap().stderr);
    assert!(said.contains("no nodes: give --nodes"), "{said}");
    // A value on the command line is meant as it is.
    fails(&nodes, &["list", "--cacert", ""], 125);
}

#[test]
fn nodes_without_a_comma_between_them_are_told_so() {
    for list in
        ["redis://a:1 redis://b:2", "redis://a:1;redis://b:2", "redis://a:1\nredis://:s3cret@b:2"]
    {
        let said = fails(&[], &["list", "--nodes", list], 125);
        assert!(said.contains("node 1 of --nodes looks like several: write a comma"), "{said}");
        assert!(!said.contains("s3cret") && said.lines().count() == 1, "{said}");
    }
}

/// Regression: a token that was truncated by copying was sent, and the error was "the lease had
/// ended".
#[test]
fn what_cannot_be_a_token_is_refused_before_any_node_is_asked() {
    let nodes = nodes(1);
    let out = succeeds(&nodes, &["acquire", "job"]);
    let token = out.lines().find_map(|line| line.strip_prefix("token ")).unwrap();
    for command in ["release", "extend"] {
        for cut in [&token[..39], &token[..38], ""] {
            let said = fails(&nodes, &[command, "job", cut], 125);
            assert!(said.contains("digits") || said.contains("empty"), "{said}");
        }
    }
    succeeds(&nodes, &["release", "job", token]);
}

/// Regression: the page of `status` listed 121 for what ended with 123, and the other pages had no
/// list.
#[test]
fn each_command_lists_the_exit_codes_that_it_has() {
    for (command, has, lacks) in [
        ("status", "  121    no quorum: fewer nodes than", "120"),
        ("status", "  141    nobody read the output", "120"),
        ("acquire", "  141    nobody read the output, and the lock was released", "127"),
        ("fence", "  141    ", "128"),
        ("fence", "  121    no quorum", "122"),
        ("release", "  122    lost", "127"),
        ("run", "  127    the command was not found", "run:"),
    ] {
        let help = succeeds(&[], &[command, "--help"]);
        let (_, codes) = help.split_once("Exit codes:").unwrap();
        assert!(codes.contains(has) && !codes.contains(lacks), "{command}: {codes}");
    }
    let by_ttl = "a twentieth of --ttl";
    let help =
        |command| succeeds(&[], &[command, "-h"]).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(help("acquire").contains(by_ttl) && help("extend").contains(by_ttl));
    assert!(!help("status").contains(by_ttl) && !help("fence").contains("ttl]"));
}

/// Regression: the error was "command not found", for a file that exists.
#[test]
fn a_script_whose_interpreter_is_missing_is_told_so() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("script");
    fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    fs::set_permissions(&script, Permissions::from_mode(0o755)).unwrap();
    let run = ["run", "job", "--", &*script.display().to_string()];
    let said = fails(&nodes(1), &run, 126);
    assert!(said.contains("the interpreter that it names behind #! was not found"), "{said}");
}

/// Regression: some began with `error:`, which does not show which program failed.
#[test]
fn what_is_wrong_with_arguments_begins_with_the_name_of_the_command() {
    for args in [&["list", "--nodse"][..], &["acquire"], &["acquire", "job", "--ttl", "\x1b[2J"]] {
        let said = fails(&[], args, 125);
        assert!(said.starts_with("lockmod: ") && !said.contains('\x1b'), "{args:?}: {said:?}");
    }
    let mut list = lockmod(&[], &["list"]);
    list.env("LOCKMOD_NODES", OsStr::from_bytes(b"redis://\xff"));
    let said = text(&list.output().unwrap().stderr);
    assert!(said.contains("LOCKMOD_NODES") && said.contains("UTF-8"), "{said}");
}

/// Regression: `1h` was shown as `60m`, `0s` as `0ms`, and `99d` not at all.
#[test]
fn lengths_of_time_are_named_as_they_were_typed() {
    let nodes = nodes(1);
    for (args, said) in [
        (&["--timeout", "1h"][..], "--timeout 1h does not fit into --ttl 30s: give 1ms to 10s"),
        (&["--timeout", "120s", "--ttl", "60s"], "--timeout 120s does not fit into --ttl 60s: "),
        (&["--ttl", "0s"], "invalid value '0s' for '--ttl <TTL>': it is too short"),
        (&["--ttl", "19ms"], "give at least 20ms"),
    ] {
        let told = fails(&nodes, &[&["acquire", "job"], args].concat(), 125);
        assert!(told.contains(said), "{told}");
    }
    for command in ["acquire", "lock"] {
        let said = fails(&nodes, &[command, "job", "--ttl", "99d"], 123);
        assert!(
            said.contains("at most 24h") && said.contains("give a shorter --ttl than 99d"),
            "{said}"
        );
    }
    let token = NO_TOKEN;
    let said = fails(&nodes, &["extend", "job", token, "--ttl", "2376h"], 123);
    assert!(said.contains("give a shorter --ttl than 2376h"), "{said}");
    let said = fails(&nodes, &["status", "--timeout", "0s"], 125);
    assert!(said.contains("--timeout 0s leaves no time"), "{said}");
}

/// Regression: the errors named "one or more arguments", and `-d` for `-dash`.
#[test]
fn arguments_that_are_wrong_are_named_as_they_were_typed() {
    let bytes = OsStr::from_bytes(b"a\xff");
    let said_of = |before: &[&str], after: &[&str]| {
        let output = lockmod(&[], before).arg(bytes).args(after).output().unwrap();
        assert_eq!(output.status.code(), Some(125));
        text(&output.stderr)
    };
    // A name may have any bytes, and is not reported as wrong.
    let said = said_of(&["acquire"], &["--wait", "x"]);
    assert!(said.contains("invalid value 'x' for '--wait"), "{said}");
    let said = said_of(&["acquire", "job", "--label"], &[]);
    assert!(said.contains("the value of --label is not UTF-8 text"), "{said}");
    let said = said_of(&["release", "job"], &[]);
    assert!(said.contains("'a\\xff' is not UTF-8 text"), "{said}");
    let said = said_of(&["list", "--nodes"], &[]);
    assert!(said.contains("the value of --nodes is not") && !said.contains("xff"), "{said}");
    let said = fails(&[], &["acquire", "-dash"], 125);
    let tip = "to pass '-dash' as a value, use '-- -dash'";
    assert!(said.contains("unexpected argument '-dash' found") && said.contains(tip), "{said}");
}

/// Regression: values from the environment were shown as required.
#[test]
fn the_line_of_usage_shows_what_is_needed_and_no_more() {
    for (command, usage) in [
        ("acquire", "Usage: lockmod acquire [OPTIONS] <NAME>\n"),
        ("run", "Usage: lockmod run [OPTIONS] <NAME> -- <CMD>...\n"),
    ] {
        let said = fails(&nodes(1), &[command], 125);
        assert!(said.contains(usage), "{said}");
    }
}

/// Regression: `%zz` was taken literally, and the password was wrong.
#[test]
fn a_percent_sign_that_stands_for_nothing_is_refused_and_no_password_shown() {
    let said = fails(&[], &["list", "--nodes", "redis://a,redis://:s3%zzcret@b"], 125);
    let expected = "the % at character 3 of its password is not followed";
    assert!(
        said.contains("node 2 of --nodes") && said.contains(expected) && !said.contains("s3"),
        "{said}"
    );
}

/// Regression: the terminal's echo of Ctrl-C stayed before the prompt.
#[test]
fn nothing_stands_before_the_prompt_after_ctrl_c() {
    let nodes = nodes(1);
    succeeds(&nodes, &["acquire", "job"]);
    for args in [&["acquire", "job", "--wait", "1m"][..], &["exporter", "--listen", "127.0.0.1:0"]]
    {
        let mut screen = Screen::start(&lockmod(&nodes, args), (80, 4));
        let begun = if args[0] == "acquire" { "held by" } else { "metrics at" };
        screen.wait_for("it has begun", |text| text.contains(begun));
        screen.press("\x03");
        screen.end();
        screen.wait_for("the line is empty", |text| !text.contains("^C"));
    }
}
