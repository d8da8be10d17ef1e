//! docs/commands.md and what a server publishes, both compared with the table of commands.
//!
//! For authors: each part of a section begins with text generated from the table, and may continue
//! with its own. If it does not, the complaint prints the expected lines. All of them: `cargo test
//! --test docs print_the_table -- --ignored --nocapture`.

use std::collections::BTreeMap;
use std::fs;

use lockmod::wire::code::{self, Code};
use lockmod::wire::spec::{self, Arg, ArgKind, COMMANDS, Command, KeyUse};
use redis::Value;

use crate::common::{Server, cmd, run, run_args, server_version};
use crate::{assert_none, root};

/// The section about errors that the server returns instead of running a command.
const SERVER_ERRORS: &str = "Errors of the server itself";

// ---- the document ----

#[test]
fn the_document_says_what_the_table_says() {
    let text = fs::read_to_string(root().join("docs/commands.md")).expect("docs/commands.md");
    let sections = split(&text, "## ");
    let names: Vec<&str> = sections.iter().map(|(name, _)| *name).collect();
    let documented: Vec<&str> =
        names.iter().copied().filter(|name| name.starts_with("LOCK.")).collect();
    let known: Vec<&str> = COMMANDS.iter().map(|command| command.name).collect();
    assert_eq!(documented, known, "the sections of docs/commands.md, and their order");

    let mut complaints = Vec::new();
    for command in COMMANDS {
        let (_, section) = sections[names.iter().position(|name| *name == command.name).unwrap()];
        let parts = split(section, "### ");
        let expected = expected_parts(command);
        let headings = |parts: &[(&str, &str)]| -> Vec<String> {
            parts.iter().map(|(heading, _)| (*heading).to_owned()).collect()
        };
        let wanted: Vec<String> = expected.iter().map(|(heading, _)| heading.clone()).collect();
        if headings(&parts) != wanted {
            complaints.push(format!("{}: its parts must be {wanted:?}", command.name));
            continue;
        }
        for ((heading, part), (_, lines)) in parts.iter().zip(&expected) {
            let rest = part.trim_start_matches('\n').strip_prefix(lines.as_str());
            let opens = lines.is_empty() || rest.is_some_and(is_end_of_paragraph);
            if part.is_empty() || !opens {
                let place = if heading.is_empty() { "the head" } else { heading };
                complaints.push(format!("{}: {place} must open with\n{lines}\n", command.name));
            }
        }
        if !section.contains("```console") {
            complaints.push(format!("{}: its example must be one that is tried", command.name));
        }
    }
    let table = codes(&code::SERVER);
    if !sections.iter().any(|(name, text)| *name == SERVER_ERRORS && text.contains(&table)) {
        complaints.push(format!("{SERVER_ERRORS} must contain\n{table}\n"));
    }
    assert_none(&complaints);
}

#[test]
#[ignore = "prints what docs/commands.md takes from the table, for its authors"]
fn print_the_table() {
    for command in COMMANDS {
        println!("## {}\n", command.name);
        for (heading, lines) in expected_parts(command) {
            let heading = if heading.is_empty() { heading } else { format!("### {heading}\n") };
            println!("{heading}{lines}\n");
        }
    }
}

#[test]
fn the_front_page_leads_to_every_command() {
    let text = fs::read_to_string(root().join("README.md")).expect("README.md");
    for command in COMMANDS {
        let anchor = command.name.to_lowercase().replace('.', "");
        let link = format!("[`{}`](docs/commands.md#{anchor})", command.name);
        assert!(text.contains(&link), "README.md lacks {link}");
    }
}

fn is_end_of_paragraph(rest: &str) -> bool {
    rest.is_empty() || rest.starts_with("\n\n")
}

/// Headings at this level with the text below them; the text before the first has no heading.
pub(crate) fn split<'a>(text: &'a str, mark: &str) -> Vec<(&'a str, &'a str)> {
    let mut starts: Vec<usize> = text.match_indices(mark).map(|(at, _)| at).collect();
    starts.retain(|&at| at == 0 || text[..at].ends_with('\n'));
    let first = starts.first().copied().unwrap_or(text.len());
    let ends = starts.iter().skip(1).copied().chain([text.len()]);
    let sections = starts.iter().zip(ends).map(|(&start, end)| {
        let section = &text[start + mark.len()..end];
        let (heading, body) = section.split_once('\n').unwrap_or((section, ""));
        (heading.trim(), body.trim_end())
    });
    std::iter::once(("", text[..first].trim_end())).chain(sections).collect()
}

/// The beginning of each part of a command's section; empty if the table does not define it.
fn expected_parts(command: &Command) -> Vec<(String, String)> {
    let mut parts = vec![
        ("", head(command)),
        ("Arguments", arguments(command)),
        ("Reply", replies(command)),
        ("Errors", errors(command)),
    ];
    if flat(command.args).iter().any(|arg| arg.keyword == Some("WAIT")) {
        parts.push(("Blocking", String::new()));
    }
    parts.extend([("Replication and persistence", String::new()), ("Example", String::new())]);
    parts.into_iter().map(|(heading, lines)| (heading.to_owned(), lines)).collect()
}

fn head(command: &Command) -> String {
    let categories: Vec<String> =
        command.acl_categories.split(' ').map(|category| format!("@{category}")).collect();
    format!(
        "    {}\n\n{}\n\nSince {} · {} · {} · {} · {}",
        command.syntax(),
        command.summary,
        spec::SINCE,
        command.complexity,
        server_flags(command).join(", "),
        categories.join(" "),
        if command.key.is_some() { "key 1" } else { "no key" },
    )
}

fn arguments(command: &Command) -> String {
    if command.args.is_empty() {
        return "None.".to_owned();
    }
    let rows = flat(command.args).into_iter().map(|arg| {
        let name = match (arg.kind, arg.keyword) {
            (ArgKind::Keyword, Some(keyword)) => keyword.to_owned(),
            (_, Some(keyword)) => format!("{keyword} {}", arg.name),
            (_, None) => arg.name.to_owned(),
        };
        row(&[&format!("`{name}`"), arg.kind.word(), arg.range, arg.meaning])
    });
    table(&["Argument", "Type", "Range", "Meaning"], rows)
}

fn replies(command: &Command) -> String {
    let lines: Vec<String> = command
        .replies
        .iter()
        .map(|(reply, meaning)| format!("- **{reply}.** {meaning}"))
        .collect();
    lines.join("\n")
}

fn errors(command: &Command) -> String {
    if command.errors.is_empty() {
        return "None of its own.".to_owned();
    }
    codes(command.errors)
}

fn codes(codes: &[Code]) -> String {
    let rows = codes.iter().map(|code| row(&[&format!("`{}`", code.word), code.when, code.retry]));
    table(&["Code", "When", "Retry"], rows)
}

fn table(titles: &[&str], rows: impl Iterator<Item = String>) -> String {
    let rule = format!("|{}", "---|".repeat(titles.len()));
    [row(titles), rule].into_iter().chain(rows).collect::<Vec<_>>().join("\n")
}

fn row(cells: &[&str]) -> String {
    // An empty cell has one blank, not two.
    format!("| {} |", cells.join(" | ")).replace("|  |", "| |")
}

/// The arguments, including those in blocks; the syntax shows the blocks themselves.
fn flat(args: &[Arg]) -> Vec<Arg> {
    args.iter()
        .flat_map(|arg| match arg.kind {
            ArgKind::Block(inner) | ArgKind::OneOf(inner) => flat(inner),
            ArgKind::Key | ArgKind::Bytes | ArgKind::Integer | ArgKind::Keyword => vec![*arg],
        })
        .collect()
}

/// The flags in the words of `COMMAND INFO`.
fn server_flags(command: &Command) -> Vec<String> {
    let word = |flag: &str| match flag {
        "deny-oom" => "denyoom".to_owned(),
        "allow-loading" => "loading".to_owned(),
        "allow-stale" => "stale".to_owned(),
        flag => flag.to_owned(),
    };
    command.flags.split(' ').map(word).collect()
}

// ---- the table itself ----

#[test]
fn arities_follow_from_the_arguments() {
    for command in COMMANDS {
        let least = 1 + command.args.iter().filter(|arg| !arg.optional).count() as i32;
        let has_options = command.args.iter().any(|arg| arg.optional);
        assert_eq!(command.arity, if has_options { -least } else { least }, "{}", command.name);
    }
}

// ---- a live server ----

/// A call with every option, which need not make sense.
fn sample(command: &Command) -> Vec<String> {
    fn put(args: &[Arg], words: &mut Vec<String>) {
        for arg in args {
            words.extend(arg.keyword.map(str::to_owned));
            match arg.kind {
                ArgKind::Key => words.push("name".to_owned()),
                ArgKind::Bytes => words.push("bytes".to_owned()),
                ArgKind::Integer => words.push("1".to_owned()),
                ArgKind::Keyword => {}
                ArgKind::Block(inner) | ArgKind::OneOf(inner) => put(inner, words),
            }
        }
    }
    let mut words = vec![command.name.to_owned()];
    put(command.args, &mut words);
    words
}

fn text(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) => text.clone(),
        Value::Okay => "OK".to_owned(),
        Value::Int(number) => number.to_string(),
        other => panic!("no text: {other:?}"),
    }
}

fn list(value: &Value) -> &[Value] {
    match value {
        Value::Array(values) | Value::Set(values) => values,
        other => panic!("no list: {other:?}"),
    }
}

fn texts(value: &Value) -> Vec<String> {
    list(value).iter().map(text).collect()
}

fn map(value: &Value) -> BTreeMap<String, Value> {
    list(value).chunks(2).map(|pair| (text(&pair[0]), pair[1].clone())).collect()
}

#[test]
fn command_docs_say_what_the_table_says() {
    /// `name type keyword? optional? summary`, a line each, members of blocks indented.
    fn of_table(args: &[Arg], indent: usize, lines: &mut Vec<String>) {
        for arg in args {
            let (kind, inner) = match arg.kind {
                ArgKind::Key => ("key", &[][..]),
                ArgKind::Bytes => ("string", &[][..]),
                ArgKind::Integer => ("integer", &[][..]),
                ArgKind::Keyword => ("pure-token", &[][..]),
                ArgKind::Block(inner) => ("block", inner),
                ArgKind::OneOf(inner) => ("oneof", inner),
            };
            let (keyword, meaning) = (arg.keyword.unwrap_or("-"), arg.meaning);
            let name = arg.name;
            let optional = if arg.optional { "optional" } else { "needed" };
            let line = format!("{name} {kind} {keyword} {optional} {meaning}");
            lines.push(" ".repeat(indent) + line.trim_end());
            of_table(inner, indent + 2, lines);
        }
    }
    fn of_server(args: &Value, indent: usize, lines: &mut Vec<String>) {
        for arg in list(args) {
            let arg = map(arg);
            let field = |name: &str| arg.get(name).map(text).unwrap_or_default();
            let keyword = arg.get("token").map_or("-".to_owned(), text);
            let is_optional = arg
                .get("flags")
                .is_some_and(|flags| texts(flags).iter().any(|flag| flag == "optional"));
            let optional = if is_optional { "optional" } else { "needed" };
            let (name, kind, meaning) = (field("name"), field("type"), field("summary"));
            let line = format!("{name} {kind} {keyword} {optional} {meaning}");
            lines.push(" ".repeat(indent) + line.trim_end());
            if let Some(inner) = arg.get("arguments") {
                of_server(inner, indent + 2, lines);
            }
        }
    }
    let server = Server::start();
    let mut conn = server.connect();
    for command in COMMANDS {
        let reply = cmd!(conn, "COMMAND", "DOCS", command.name).expect("an answer");
        let docs = map(&list(&reply)[1]);
        assert_eq!(text(&docs["summary"]), command.summary, "{}", command.name);
        assert_eq!(text(&docs["since"]), spec::SINCE, "{}", command.name);
        assert_eq!(text(&docs["complexity"]), command.complexity, "{}", command.name);
        let (mut table, mut published) = (Vec::new(), Vec::new());
        of_table(command.args, 0, &mut table);
        if let Some(args) = docs.get("arguments") {
            of_server(args, 0, &mut published);
        }
        assert_eq!(published, table, "{}", command.name);
    }
}

#[test]
fn command_info_and_getkeys_say_what_the_table_says() {
    let server = Server::start();
    let mut conn = server.connect();
    for command in COMMANDS {
        let name = command.name;
        let reply = cmd!(conn, "COMMAND", "INFO", name).expect("an answer");
        let info = list(&list(&reply)[0]);
        assert_eq!(text(&info[1]), command.arity.to_string(), "{name}: arity");
        let mut flags = texts(&info[2]);
        flags.retain(|flag| flag != "module");
        flags.sort();
        let mut expected = server_flags(command);
        expected.sort();
        assert_eq!(flags, expected, "{name}: flags");
        let position = if command.key.is_some() { "1" } else { "0" };
        assert_eq!(texts(&Value::Array(info[3..6].to_vec())), [position; 3], "{name}: key");
        let key_specs: Vec<Vec<String>> =
            list(&info[8]).iter().map(|spec| texts(&map(spec)["flags"])).collect();
        let expected: &[&[&str]] = match command.key {
            None => &[],
            Some(KeyUse::Read) => &[&["RO", "access"]],
            Some(KeyUse::Update) => &[&["RW", "access", "update"]],
        };
        assert_eq!(key_specs, expected, "{name}: key specs");
        if has_acl_categories() {
            let mut categories = texts(&info[6]);
            categories.sort();
            let mut expected: Vec<String> =
                command.acl_categories.split(' ').map(|word| format!("@{word}")).collect();
            expected.sort();
            assert_eq!(categories, expected, "{name}: ACL categories");
        }

        let call: Vec<String> =
            ["COMMAND", "GETKEYS"].map(str::to_owned).into_iter().chain(sample(command)).collect();
        match (run_args(&mut conn, &call), command.key) {
            (Ok(keys), Some(_)) => assert_eq!(texts(&keys), ["name"], "{name}"),
            (Err(_), None) => {}
            (answer, _) => panic!("COMMAND GETKEYS of {name}: {answer:?}"),
        }
    }
}

/// Whether the server supports ACL categories for module commands.
fn has_acl_categories() -> bool {
    let version = server_version();
    version.is_valkey() || version.is_redis_from(7, 2)
}

#[test]
fn access_rules_bind_commands_and_keys() {
    let server = Server::start();
    let mut conn = server.connect();
    run(&mut conn, "ACL SETUSER names +@all ~other:*").expect("a rule");
    run(&mut conn, "ACL SETUSER reader +@all %R~*").expect("a rule");
    run(&mut conn, "ACL SETUSER no-writes allkeys +@all -@write").expect("a rule");
    run(&mut conn, "ACL SETUSER writer %RW~* +LOCK.ACQUIRE").expect("a rule");
    let mut may = |user: &str, command: &Command| {
        let call: Vec<String> =
            ["ACL", "DRYRUN", user].map(str::to_owned).into_iter().chain(sample(command)).collect();
        text(&run_args(&mut conn, &call).expect("an answer")) == "OK"
    };
    for command in COMMANDS {
        let name = command.name;
        assert_eq!(may("names", command), command.key.is_none(), "{name} on a foreign key");
        let updates = command.key == Some(KeyUse::Update);
        assert_eq!(may("reader", command), !updates, "{name} with the right to read keys");
        assert_eq!(may("writer", command), name == "LOCK.ACQUIRE", "{name} by its name");
        if has_acl_categories() {
            let writes = command.acl_categories.split(' ').any(|word| word == "write");
            assert_eq!(may("no-writes", command), !writes, "{name} without @write");
        }
    }
}

#[test]
fn lock_help_prints_the_table() {
    let server = Server::start();
    let mut conn = server.connect();
    let reply = cmd!(conn, "LOCK.HELP").expect("an answer");
    assert_eq!(texts(&reply), spec::help());
}
