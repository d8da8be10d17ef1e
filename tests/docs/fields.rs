//! The fields of `LOCK.INFO` and `INFO` in docs/commands.md, and the votes in docs/command-line.md,
//! compared with the lists in the code.

use std::fs;

use lockmod::client::Vote;
use lockmod::wire::lock_info;
use lockmod::wire::node_info::NodeField;

use crate::commands::split;
use crate::root;

/// The names in the first column of the table of fields in this section of docs/commands.md.
fn documented(section: &str) -> Vec<String> {
    first_column("docs/commands.md", section, "| Field |")
}

/// The names in the first column of the table with this head, in this section of a document.
fn first_column(document: &str, section: &str, head: &str) -> Vec<String> {
    let text = fs::read_to_string(root().join(document)).expect("the document");
    let sections = split(&text, "## ");
    let (_, text) = sections.iter().find(|(name, _)| *name == section).expect("the section");
    let rows = text.lines().skip_while(|line| !line.starts_with(head)).skip(2);
    let cells = rows.map_while(|row| row.strip_prefix("| ")?.split(" | ").next());
    let names = cells.flat_map(|cell| cell.split(", "));
    names.map(|name| name.trim_matches('`').to_owned()).collect()
}

#[test]
fn each_field_of_a_lock_is_documented_in_its_place() {
    let told: Vec<&str> = lock_info::field_names().collect();
    assert_eq!(documented("LOCK.INFO"), told);
}

#[test]
fn each_field_of_a_node_is_documented_in_its_place() {
    let told: Vec<&str> = NodeField::ALL.iter().map(|field| field.name()).collect();
    assert_eq!(documented("INFO"), told);
}

#[test]
fn each_vote_is_documented() {
    let mut documented = first_column("docs/command-line.md", "Scripts", "| `vote` |");
    let mut told = Vote::WORDS.to_vec();
    documented.sort_unstable();
    told.sort_unstable();
    assert_eq!(documented, told);
}
