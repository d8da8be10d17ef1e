//! docs/operations.md compared with the source: it explains exactly the lines that the module logs.

use std::fs;
use std::path::Path;

use crate::root;

/// Source text without comments and tests, and the places of its string literals.
struct Source {
    text: String,
    literals: Vec<(usize, String)>,
}

/// Extracts literals from Rust text: escapes are undone as far as log lines use them.
fn read(text: &str) -> Source {
    let text = text.split("#[cfg(test)]").next().unwrap_or_default();
    let code: Vec<&str> =
        text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let text = code.join("\n");
    let mut literals = Vec::new();
    let mut chars = text.char_indices().peekable();
    while let Some((start, char)) = chars.next() {
        if char == '\'' && text[start..].starts_with("'\"'") {
            chars.nth(1);
        }
        if char != '"' {
            continue;
        }
        let mut literal = String::new();
        while let Some((_, char)) = chars.next_if(|&(_, char)| char != '"') {
            match char {
                '\\' => match chars.next() {
                    Some((_, '\n')) => while chars.next_if(|(_, c)| c.is_whitespace()).is_some() {},
                    Some((_, escaped)) => literal.push(escaped),
                    None => {}
                },
                char => literal.push(char),
            }
        }
        chars.next();
        literals.push((start, with_dots(&literal)));
    }
    Source { text, literals }
}

/// A format string as the document shows it: `...` instead of the parts that vary.
fn with_dots(literal: &str) -> String {
    let mut shown = String::new();
    let mut rest = literal;
    while let Some((before, after)) = rest.split_once('{') {
        let Some((_, after)) = after.split_once('}') else { break };
        shown += before;
        shown += "...";
        rest = after;
    }
    shown + rest
}

impl Source {
    /// The log lines: for each call, its literals, or those of the `line` that it logs.
    fn logged(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (call, _) in self.text.match_indices("log(") {
            let end = self.text[call..].find(';').map_or(self.text.len(), |end| call + end);
            let is_call = self.text[call..end].contains("Level::")
                && !self.text[..call].ends_with("fn ")
                && !self.text[call..end].contains(": Level");
            // The text of a warning is in the engine.
            if !is_call || self.text[call..end].contains("warning.to_string()") {
                continue;
            }
            let is_line = self.text[call..end].ends_with("line)");
            let start = if is_line { self.text[..call].rfind("let line =") } else { Some(call) };
            let start = start.expect("a line is bound before it is logged");
            let parts = self.literals.iter().filter(|(place, _)| (start..end).contains(place));
            let parts: Vec<String> = parts.map(|(_, literal)| literal.clone()).collect();
            assert!(!parts.is_empty(), "a log line without a literal: {}", &self.text[start..end]);
            if self.text[start..end].contains("concat!") {
                lines.push(parts.concat().replace("CARGO_PKG_VERSION", "..."));
            } else {
                lines.extend(parts);
            }
        }
        lines
    }

    /// The engine's messages about a master's authority: one line for each literal.
    fn notices(&self) -> Vec<String> {
        let Some(start) = self.text.find("impl fmt::Display for Notice") else { return vec![] };
        let end = self.text[start..].find("\n}").map_or(self.text.len(), |end| start + end);
        let lines = self.literals.iter().filter(|(at, _)| (start..end).contains(at));
        lines.map(|(_, line)| line.clone()).collect()
    }

    /// The literals of the item that begins with this text, as far as they are of several words.
    fn texts_in(&self, item: &str) -> Vec<String> {
        let start = self.text.find(item).unwrap_or_else(|| panic!("no {item}"));
        let end = self.text[start..].find("\n}").expect("its end") + start;
        let texts = self.literals.iter().filter(|(at, _)| (start..end).contains(at));
        let texts = texts.map(|(_, text)| text.clone()).filter(|text| text.contains(' '));
        texts.collect()
    }

    /// The text of the engine's warnings: one line for each branch.
    fn warnings(&self) -> Vec<String> {
        let Some(start) = self.text.find("impl fmt::Display for Warning") else { return vec![] };
        let end = self.text[start..].find("\n}").map_or(self.text.len(), |end| start + end);
        let mut lines = vec![String::new()];
        for (place, literal) in self.literals.iter().filter(|(at, _)| (start..end).contains(at)) {
            let branches = self.text[start..*place].matches("} else {").count();
            lines.resize(branches + 1, String::new());
            lines[branches] += literal;
        }
        lines
    }
}

fn sources(folder: &Path) -> Vec<Source> {
    let entries = fs::read_dir(folder).expect("the module's source").flatten();
    let mut sources = Vec::new();
    for path in entries.map(|entry| entry.path()) {
        if path.is_dir() {
            sources.extend(self::sources(&path));
        } else {
            sources.push(read(&fs::read_to_string(path).expect("source is text")));
        }
    }
    sources
}

/// The text in backticks in the first cells of the tables below this heading.
fn documented(text: &str, heading: &str) -> Vec<String> {
    let section = text.split(heading).nth(1).and_then(|rest| rest.split("\n## ").next());
    let rows = section.expect("the heading").lines().filter(|line| line.starts_with("| `"));
    let cells = rows.filter_map(|row| row.split(" | ").next());
    let quoted = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    cells.flat_map(|cell| -> Vec<String> { quoted(cell) }).collect()
}

#[test]
fn every_log_line_is_explained_and_every_explained_one_is_logged() {
    let text = fs::read_to_string(root().join("docs/operations.md")).expect("the document");
    let documented = documented(&text, "\n## Log lines\n");
    let sources = sources(&root().join("src/module"));
    let mut logged: Vec<String> = sources.iter().flat_map(Source::logged).collect();
    let engine = self::sources(&root().join("src/engine"));
    let warnings: Vec<String> = engine.iter().flat_map(Source::warnings).collect();
    assert_eq!(warnings.len(), 2, "{warnings:#?}");
    logged.extend(warnings);
    let notices: Vec<String> = engine.iter().flat_map(Source::notices).collect();
    assert_eq!(notices.len(), 3, "{notices:#?}");
    logged.extend(notices);
    assert!(logged.len() >= 14, "lines are found: {logged:#?}");
    let missing: Vec<_> = logged.iter().filter(|line| !documented.contains(line)).collect();
    assert!(missing.is_empty(), "not explained: {missing:#?}");
    let said = |line: &String| {
        let in_a_literal = |source: &Source| source.literals.iter().any(|(_, text)| text == line);
        logged.contains(line) || sources.iter().any(in_a_literal)
    };
    let stale: Vec<_> = documented.iter().filter(|line| !said(line)).collect();
    assert!(stale.is_empty(), "never logged: {stale:#?}");
}

#[test]
fn every_part_of_a_state_is_explained() {
    let text = fs::read_to_string(root().join("docs/operations.md")).expect("the document");
    let rows = text.lines().skip_while(|line| *line != "| STATE | means |").skip(2);
    let rows: Vec<&str> =
        rows.map_while(|row| row.strip_prefix("| ")?.split(" | ").next()).collect();
    let source = |path: &str| read(&fs::read_to_string(root().join(path)).expect("source is text"));
    let (shown, told) = (source("src/cli/rows.rs"), source("src/client/node_status.rs"));
    let items = ["const OUT_OF_REACH", "fn node(", "fn state(", "fn in_slots(", "fn supported("];
    let parts: Vec<Vec<String>> = items
        .iter()
        .map(|item| shown.texts_in(item))
        .chain([told.texts_in("impl fmt::Display for WaitsIn")])
        .collect();
    assert!(parts.iter().all(|parts| !parts.is_empty()), "texts are found: {parts:#?}");
    assert!(parts.concat().len() >= 15, "most are found: {parts:#?}");
    let is_explained = |part: &String| {
        // Where the part has `...`, the document may show an example.
        let is_in = |row: &&str| {
            let mut rest = *row;
            part.split("...").all(|piece| match rest.split_once(piece) {
                Some((_, after)) => {
                    rest = after;
                    true
                }
                None => false,
            })
        };
        rows.iter().any(is_in)
    };
    let missing: Vec<String> =
        parts.concat().into_iter().filter(|part| !is_explained(part)).collect();
    assert_eq!(missing, [""; 0], "not in the table of states in docs/operations.md");
    assert!(!is_explained(&"grants ... on Sundays".to_owned()));
}

#[test]
fn log_lines_are_found_in_source() {
    let source = read(
        "fn f() {\n    // log(Level::Warning, \"a comment\");\n    let line = if a {\n        \
         format!(\"one {x} \\\n            more\")\n    } else {\n        \"two\"\n    };\n    \
         context.log(Level::Warning, &line);\n    log(Level::Notice, concat!(\"v\", \
         env!(\"CARGO_PKG_VERSION\"), \" ready\"));\n    other(\"not this\");\n}\n",
    );
    assert_eq!(source.logged(), ["one ... more", "two", "v... ready"]);
}
