//! The parts of a Markdown document that can be checked: its fenced blocks and its links.

/// One fenced block.
#[derive(Debug, Default)]
pub(crate) struct Block {
    pub(crate) language: String,
    pub(crate) is_ignored: bool,
    pub(crate) is_closed: bool,
    /// The line of the opening fence, from 1.
    pub(crate) line: usize,
    pub(crate) text: String,
}

impl Block {
    /// Why this label is not allowed, if so.
    pub(crate) fn is_mislabelled(&self) -> Option<&'static str> {
        match self.language.as_str() {
            _ if !self.is_closed => Some("this block is never closed"),
            "" => Some("this block has no word behind its fence: `text`, if it is nothing else"),
            "sh" | "bash" | "shell" if !self.is_ignored => {
                Some("write it as `console`, so that it is tried, or as `sh,ignore`")
            }
            _ => None,
        }
    }
}

/// All fenced blocks; those in lists without their indentation.
pub(crate) fn blocks(markdown: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<(Block, usize)> = None;
    for (i, line) in markdown.lines().enumerate() {
        let trimmed = line.trim_start();
        let indent = line.len() - trimmed.len();
        match open.take() {
            None => open = trimmed.strip_prefix("```").map(|label| (start(label, i + 1), indent)),
            Some((mut block, _)) if trimmed.trim_end() == "```" => {
                block.is_closed = true;
                blocks.push(block);
            }
            Some((mut block, margin)) => {
                block.text.push_str(&line[margin.min(indent)..]);
                block.text.push('\n');
                open = Some((block, margin));
            }
        }
    }
    blocks.extend(open.map(|(block, _)| block));
    blocks
}

fn start(label: &str, line: usize) -> Block {
    let mut words = label.split([',', ' ']).map(str::trim).filter(|word| !word.is_empty());
    let language = words.next().unwrap_or_default().to_owned();
    let is_ignored = words.any(|word| word == "ignore");
    Block { language, is_ignored, line, ..Block::default() }
}

/// Links to files of the repository, with their lines; addresses and anchors are left out.
pub(crate) fn links(markdown: &str) -> Vec<(usize, String)> {
    let mut links = Vec::new();
    let mut is_in_block = false;
    for (i, line) in markdown.lines().enumerate() {
        is_in_block ^= line.trim_start().starts_with("```");
        for rest in line.split("](").skip(1).filter(|_| !is_in_block) {
            let target = rest.split([')', '#']).next().unwrap_or_default();
            if !target.is_empty() && !target.contains("://") && !target.starts_with("mailto:") {
                links.push((i + 1, target.to_owned()));
            }
        }
    }
    links
}

#[test]
fn links_to_files_are_found() {
    let text = "[a](docs/a.md#part) [b](https://b.example/) [c](#here)\n```text\n[d](d.md)\n```\n";
    assert_eq!(links(text), [(1, "docs/a.md".to_owned())]);
}
