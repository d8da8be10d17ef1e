//! Tokens and labels: how a caller identifies itself. The token is secret, the label is public.

use std::hash::{DefaultHasher, Hasher};

use super::Refusal;

/// The longest token that any setting allows, in bytes: its length is kept in one byte.
pub const TOKEN_MAX: usize = 255;
/// The longest token by default, in bytes.
pub const TOKEN_MAX_DEFAULT: usize = 64;
/// The longest label, in bytes: enough for `host:pid` and a job's name.
pub const LABEL_MAX: usize = 128;

/// Opaque bytes that prove a claim: anyone who knows them can release the lock.
///
/// Borrowed from the request. Never printed, logged or shown; the type has no `Display`, and its
/// `Debug` shows the length only.
#[derive(Clone, Copy)]
pub struct Token<'a>(&'a [u8]);

impl<'a> Token<'a> {
    /// The token made of `bytes`: at least one, and at most `max`.
    ///
    /// # Errors
    /// [`Refusal::BadToken`] if there are none, or more than `max`.
    pub fn new(bytes: &'a [u8], max: usize) -> Result<Token<'a>, Refusal> {
        if bytes.is_empty() || bytes.len() > max.min(TOKEN_MAX) {
            return Err(Refusal::BadToken { length: bytes.len(), max: max.min(TOKEN_MAX) });
        }
        Ok(Token(bytes))
    }

    /// The bytes.
    pub const fn as_bytes(self) -> &'a [u8] {
        self.0
    }
}

/// The hash by which tokens are indexed. In an index sorted by their bytes, the time of a lookup
/// would reveal how much of a guess was right.
pub(super) fn digest(token: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(token);
    hasher.finish()
}

/// Compares in a time that depends only on the lengths, so that response times do not reveal how
/// much of a guess was right.
impl PartialEq for Token<'_> {
    fn eq(&self, other: &Self) -> bool {
        let differ = |sum: u8, (one, two): (&u8, &u8)| sum | (one ^ two);
        self.0.len() == other.0.len() && self.0.iter().zip(other.0).fold(0, differ) == 0
    }
}

impl Eq for Token<'_> {}

impl std::fmt::Debug for Token<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Token({} bytes)", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_have_a_length_of_one_to_the_limit() {
        assert!(Token::new(b"", 64).is_err());
        assert!(Token::new(&[7; 64], 64).is_ok());
        assert!(Token::new(&[7; 65], 64).is_err());
        assert!(Token::new(&[7; 256], 1000).is_err());
    }

    #[test]
    fn tokens_compare_by_all_of_their_bytes() {
        let token = |bytes| Token::new(bytes, 64).unwrap();
        assert_eq!(token(b"abc"), token(b"abc"));
        assert_ne!(token(b"abc"), token(b"abd"));
        assert_ne!(token(b"abc"), token(b"abcd"));
    }

    #[test]
    fn debug_output_does_not_show_the_secret() {
        assert_eq!(format!("{:?}", Token::new(b"secret", 64).unwrap()), "Token(6 bytes)");
    }
}
