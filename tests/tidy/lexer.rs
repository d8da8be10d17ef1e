//! Tells code from comments and strings: so that a rule about code is not upset by a word in prose.
//!
//! It knows as much of Rust's lexer as that takes: nested comments, raw strings, and that `'a` is a
//! lifetime where `'a'` is a character. Other files are all "code".

/// One file, with its code and its comments apart, line by line.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) path: String,
    pub(crate) lines: Vec<Line>,
}

/// One line in three views, each as long as the line.
#[derive(Clone, Debug, Default)]
pub(crate) struct Line {
    /// As it is.
    pub(crate) text: String,
    /// Comments and the insides of strings are blank.
    pub(crate) code: String,
    /// All but comments is blank.
    pub(crate) comment: String,
    /// Within the unit tests at a file's end, or in a file of tests.
    pub(crate) is_test: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    Code,
    LineComment,
    BlockComment(u32),
    String,
    RawString(usize),
}

impl Source {
    pub(crate) fn new(path: &str, text: &str) -> Self {
        let mut lines = if path.ends_with(".rs") { split(text) } else { plain(text) };
        let in_tests = ["tests/", "benches/", "examples/", "fuzz/"];
        let is_test_file = in_tests.iter().any(|folder| path.starts_with(folder));
        let is_mark = |line: &Line| line.code.trim_start().starts_with("#[cfg(test)]");
        let opens = |line: &Line| line.code.trim_end().ends_with("mod tests {");
        // The unit tests are last; a lone helper for tests further up does not end the code.
        let first = (0..lines.len())
            .find(|&i| is_mark(&lines[i]) && lines[i + 1..].iter().take(3).any(opens));
        for (i, line) in lines.iter_mut().enumerate() {
            line.is_test = is_test_file || first.is_some_and(|first| i >= first);
        }
        Self { path: path.to_owned(), lines }
    }

    pub(crate) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    pub(crate) fn is_in(&self, folder: &str) -> bool {
        self.path.starts_with(folder)
    }
}

fn plain(text: &str) -> Vec<Line> {
    let line = |text: &str| Line { text: text.into(), code: text.into(), ..Line::default() };
    text.lines().map(line).collect()
}

fn split(text: &str) -> Vec<Line> {
    let chars: Vec<char> = text.chars().collect();
    let at = |i: usize| chars.get(i).copied().unwrap_or('\n');
    let (mut lines, mut line) = (Vec::new(), Line::default());
    let mut state = State::Code;
    let mut i = 0;
    while i < chars.len() {
        if chars[i] == '\n' {
            if state == State::LineComment {
                state = State::Code;
            }
            lines.push(std::mem::take(&mut line));
            i += 1;
            continue;
        }
        // How many characters belong together, what they are, and what follows.
        let (count, is_code, is_comment, next) = match state {
            State::Code => match (at(i), at(i + 1)) {
                ('/', '/') => (2, false, true, State::LineComment),
                ('/', '*') => (2, false, true, State::BlockComment(1)),
                ('"', _) => (1, true, false, State::String),
                ('r', '"' | '#') if !is_word(i, &chars) && raw_hashes(i + 1, &at).is_some() => {
                    let hashes = raw_hashes(i + 1, &at).expect("just seen");
                    (hashes + 2, true, false, State::RawString(hashes))
                }
                ('\'', '\\') => (char_end(i, &at), true, false, State::Code),
                ('\'', _) if at(i + 2) == '\'' => (3, true, false, State::Code),
                _ => (1, true, false, State::Code),
            },
            State::LineComment => (1, false, true, State::LineComment),
            State::BlockComment(depth) => match (at(i), at(i + 1)) {
                ('*', '/') if depth == 1 => (2, false, true, State::Code),
                ('*', '/') => (2, false, true, State::BlockComment(depth - 1)),
                ('/', '*') => (2, false, true, State::BlockComment(depth + 1)),
                _ => (1, false, true, state),
            },
            State::String => match at(i) {
                '\\' if at(i + 1) != '\n' => (2, false, false, state),
                '"' => (1, true, false, State::Code),
                _ => (1, false, false, state),
            },
            State::RawString(hashes) => {
                let ends = at(i) == '"' && (1..=hashes).all(|k| at(i + k) == '#');
                if ends { (hashes + 1, true, false, State::Code) } else { (1, false, false, state) }
            }
        };
        // A character literal's inside is no code either: `'"'` must not look like a string.
        let is_char = state == State::Code && at(i) == '\'' && count > 1;
        for k in i..i + count {
            line.text.push(at(k));
            line.code.push(if is_code && !is_char { at(k) } else { ' ' });
            line.comment.push(if is_comment { at(k) } else { ' ' });
        }
        state = next;
        i += count;
    }
    lines.push(line);
    lines
}

/// Whether the character before this one makes it part of a word (`attr"` is not a raw string).
fn is_word(i: usize, chars: &[char]) -> bool {
    i > 0 && (chars[i - 1].is_alphanumeric() || chars[i - 1] == '_') && chars[i - 1] != 'b'
}

fn raw_hashes(start: usize, at: &impl Fn(usize) -> char) -> Option<usize> {
    let hashes = (0..).take_while(|k| at(start + k) == '#').count();
    (at(start + hashes) == '"').then_some(hashes)
}

/// The length of an escaped character literal.
fn char_end(start: usize, at: &impl Fn(usize) -> char) -> usize {
    let end = (start + 3..).find(|&k| at(k) == '\'' || at(k) == '\n').expect("a line ends");
    if at(end) == '\'' { end - start + 1 } else { 1 }
}

#[test]
fn code_comments_and_strings_are_told_apart() {
    let cases = [
        ("a // b", "a     "),
        ("a /* b /* c */ d */ e", "a                   e"),
        (r#"f("x // y", 'z')"#, "f(\"      \",    )"),
        ("r#\"say \"hi\"\"# + 'a'", "r#\"        \"# +    "),
        ("fn f<'a>(x: &'a str)", "fn f<'a>(x: &'a str)"),
        (r"'\'' + '\u{41}' + '\\'", "     +          +     "),
        (r#"b'"' + x"#, "b    + x"),
        (r#""a\"b" + c"#, "\"    \" + c"),
    ];
    for (text, code) in cases {
        assert_eq!(Source::new("x.rs", text).lines[0].code, code, "{text}");
    }
    let text = "a\n/* b\nc */ d\n\"e\nf\" g";
    let code: Vec<String> =
        Source::new("x.rs", text).lines.into_iter().map(|line| line.code).collect();
    assert_eq!(code, ["a", "    ", "     d", "\" ", " \" g"]);
}
