//! redis.conf.example compared with the options of a live server: names, defaults, ranges.
//!
//! The document gives each option a line of facts, and the directive with its default below it:
//!
//! ```text
//! # Integer, milliseconds. Range: 1 .. 31622400000. Default: 86400000 (one day). CONFIG SET: yes.
//! #
//! # lockmod.max-ttl 86400000
//! ```
//!
//! The other types are `Yes or no.` and `Text.`, which have no range. Port 6379 in a default stands
//! for the server's own.

use std::collections::BTreeMap;
use std::fs;

use redis::Connection;

use crate::common::{Server, cmd};
use crate::root;

#[derive(Clone, Debug)]
struct Documented {
    /// Including the prefix.
    name: String,
    default: String,
    kind: Kind,
    can_be_set: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum Kind {
    Integer { min: i64, max: i64 },
    YesOrNo,
    Text,
}

fn example() -> String {
    fs::read_to_string(root().join("redis.conf.example")).expect("redis.conf.example")
}

/// The options of the document, in its order.
fn documented(text: &str) -> Vec<Documented> {
    let mut facts = "";
    let mut options = Vec::new();
    for line in text.lines() {
        let comment = line.trim_start_matches("# ");
        if ["Integer, ", "Yes or no. ", "Text. "].iter().any(|kind| comment.starts_with(kind)) {
            facts = comment;
        }
        if let Some((name, default)) = comment.strip_prefix("lockmod.").and_then(split_directive) {
            options.push(read(&format!("lockmod.{name}"), default, std::mem::take(&mut facts)));
        }
    }
    options
}

fn split_directive(line: &str) -> Option<(&str, &str)> {
    let (name, value) = line.split_once(' ')?;
    let is_one = !value.contains(' ') && name.chars().all(|c| c.is_alphanumeric() || c == '-');
    is_one.then_some((name, value))
}

#[track_caller]
fn read(name: &str, directive: &str, facts: &str) -> Documented {
    let after = |title: &str| {
        let rest = facts.split(title).nth(1);
        let rest = rest.unwrap_or_else(|| panic!("{name}: no `{title}` in its facts: {facts:?}"));
        rest.split(['.', ' ']).next().unwrap_or_default().to_owned()
    };
    let kind = if facts.starts_with("Integer") {
        let range = facts.split("Range: ").nth(1).and_then(|rest| rest.split(". Default").next());
        let (min, max) = range.and_then(|range| range.split_once(" .. ")).expect("a range");
        Kind::Integer { min: min.parse().expect("digits"), max: max.parse().expect("digits") }
    } else if facts.starts_with("Yes or no") {
        Kind::YesOrNo
    } else {
        Kind::Text
    };
    if kind != Kind::Text {
        assert_eq!(after("Default: "), directive, "{name}: the facts and the directive");
    }
    let can_be_set = after("CONFIG SET: ") == "yes";
    let default = directive.trim_matches('"').to_owned();
    Documented { name: name.to_owned(), default, kind, can_be_set }
}

fn published(conn: &mut Connection) -> BTreeMap<String, String> {
    redis::cmd("CONFIG").arg("GET").arg("lockmod.*").query(conn).expect("an answer")
}

fn defaults(options: &[Documented], port: u16) -> BTreeMap<String, String> {
    let of_port = |text: &str| text.replace("6379", &port.to_string());
    options.iter().map(|option| (option.name.clone(), of_port(&option.default))).collect()
}

#[test]
fn the_example_has_every_option_with_its_default() {
    let server = Server::start();
    let documented = defaults(&documented(&example()), server.port());
    assert_eq!(documented, published(&mut server.connect()));
}

#[test]
fn options_can_be_set_within_the_documented_range_and_not_beyond() {
    let server = Server::start();
    let mut conn = server.connect();
    for option in documented(&example()) {
        let (allowed, refused) = match option.kind {
            Kind::Integer { min, max } => (vec![min, max], vec![min - 1, max + 1]),
            Kind::YesOrNo | Kind::Text => (vec![], vec![]),
        };
        let digits = |numbers: Vec<i64>| numbers.iter().map(i64::to_string).collect::<Vec<_>>();
        let (mut allowed, mut refused) = (digits(allowed), digits(refused));
        if option.kind == Kind::YesOrNo {
            allowed = vec!["no".to_owned(), "yes".to_owned()];
            refused = vec!["maybe".to_owned()];
        }
        if !option.can_be_set {
            refused.append(&mut allowed);
            refused.push(option.default.clone());
        }
        for (values, is_allowed) in [(allowed, true), (refused, false)] {
            for value in values {
                let answer = cmd!(conn, "CONFIG", "SET", &option.name, &value);
                assert_eq!(answer.is_ok(), is_allowed, "{} {value}: {answer:?}", option.name);
            }
        }
    }
}

#[test]
fn the_directives_of_the_example_are_the_defaults() {
    let example = example();
    let options = documented(&example);
    let uncommented = example.replace("\n# lockmod.", "\nlockmod.");
    let server = Server::builder().config_text(&uncommented).start();
    // The file of port 6379 by name, whatever the port is here.
    assert_eq!(published(&mut server.connect()), defaults(&options, 6379));
}

#[test]
fn every_option_may_stand_on_the_line_that_loads_the_module() {
    let mut builder = Server::builder();
    let mut expected = BTreeMap::new();
    for option in documented(&example()) {
        let value = match option.kind {
            Kind::Integer { min, .. } => min.to_string(),
            Kind::YesOrNo => "no".to_owned(),
            Kind::Text => "a-file-name".to_owned(),
        };
        builder = builder.module_arg(option.name.trim_start_matches("lockmod."), &value);
        expected.insert(option.name, value);
    }
    let server = builder.start();
    assert_eq!(published(&mut server.connect()), expected);
}
