//! A transcript of commands and their output: read, run and compared.

use super::blocks::Block;
use super::session::Session;

/// Stands for anything within a line, or for any lines.
const ANYTHING: &str = "...";

/// One command, and its expected output.
#[derive(Debug, Default, PartialEq)]
struct Step {
    line: usize,
    command: String,
    expected: Vec<String>,
}

/// Runs a block; returns the lines and reasons of all differences.
pub(crate) fn try_block(session: &mut Session, block: &Block) -> Vec<(usize, String)> {
    let steps = match steps(&block.text) {
        Ok(steps) => steps,
        Err(why) => return vec![(block.line, why)],
    };
    let mut wrong = Vec::new();
    for step in steps {
        match session.run(&step.command) {
            Ok(None) => {}
            Ok(Some(output)) => {
                let lines: Vec<&str> = output.lines().map(str::trim_end).collect();
                if !is_as_shown(&step.expected, &lines) {
                    let shown = step.expected.join("\n");
                    let why = format!("$ {}\n--- shown:\n{shown}\n--- is:\n{output}", step.command);
                    wrong.push((block.line + step.line, why));
                }
            }
            Err(why) => {
                // The rest of the block would make no sense.
                wrong.push((block.line + step.line, format!("$ {}\n{why}", step.command)));
                return wrong;
            }
        }
    }
    wrong
}

fn steps(text: &str) -> Result<Vec<Step>, String> {
    let mut steps: Vec<Step> = Vec::new();
    let mut is_in_command = false;
    for (i, line) in text.lines().enumerate() {
        if let Some(command) = line.strip_prefix("$ ") {
            steps.push(Step { line: i + 1, command: command.to_owned(), ..Step::default() });
            is_in_command = true;
            continue;
        }
        let step = steps.last_mut().ok_or("a console block starts with a line `$ command`")?;
        let goes_on = step.command.ends_with('\\');
        match line.strip_prefix("> ") {
            Some(more) if is_in_command => step.command += &format!("\n{more}"),
            _ if is_in_command && goes_on => step.command += &format!("\n{line}"),
            _ => {
                is_in_command = false;
                step.expected.push(without_comment(line).trim_end().to_owned());
            }
        }
    }
    for step in &mut steps {
        // Blank lines before the next command are for the reader.
        while step.expected.last().is_some_and(String::is_empty) {
            step.expected.pop();
        }
    }
    Ok(steps)
}

/// A comment has at least two blanks before it; a `#` in the output does not.
fn without_comment(line: &str) -> &str {
    line.find("  # ").map_or(line, |at| &line[..at])
}

fn is_as_shown(shown: &[String], lines: &[&str]) -> bool {
    let Some((first, shown_rest)) = shown.split_first() else { return lines.is_empty() };
    if first == ANYTHING {
        return (0..=lines.len()).any(|skip| is_as_shown(shown_rest, &lines[skip..]));
    }
    let Some((line, rest)) = lines.split_first() else { return false };
    is_line_as_shown(first, line) && is_as_shown(shown_rest, rest)
}

fn is_line_as_shown(shown: &str, line: &str) -> bool {
    let Some((before, after)) = shown.split_once(ANYTHING) else { return shown == line };
    let Some(rest) = line.strip_prefix(before) else { return false };
    (0..=rest.len())
        .filter(|&at| rest.is_char_boundary(at))
        .any(|at| is_line_as_shown(after, &rest[at..]))
}

#[test]
fn dots_stand_for_anything() {
    let is_shown = |shown: &[&str], lines: &[&str]| {
        let shown: Vec<String> = shown.iter().map(ToString::to_string).collect();
        is_as_shown(&shown, lines)
    };
    assert!(is_shown(&["a ... c ... e"], &["a b c d e"]));
    assert!(!is_shown(&["a ... c"], &["a b c d"]));
    assert!(is_shown(&["a", "...", "c"], &["a", "b", "b", "c"]));
    assert!(is_shown(&["a", "..."], &["a"]));
    assert!(!is_shown(&["...", "c"], &["a", "b"]));
    assert!(!is_shown(&[], &["a"]));
    assert!(!is_shown(&["a"], &[]));
}
