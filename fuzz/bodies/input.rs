//! Bytes as a sequence of choices: every input means something.
#![allow(dead_code, reason = "each body uses a part of it")]

/// Reads choices from the front of some bytes; zeros once they are used up.
pub(crate) struct Input<'a>(pub(crate) &'a [u8]);

impl<'a> Input<'a> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    /// A number of 1 to 9 bytes: small ones are short, and all can be written.
    pub(crate) fn number(&mut self) -> u64 {
        match self.byte() {
            small @ 0..=247 => u64::from(small),
            tag => {
                let length = usize::from(tag - 247);
                let mut bytes = [0; 8];
                bytes[..length].copy_from_slice(self.bytes(length));
                u64::from_le_bytes(bytes)
            }
        }
    }

    /// `length` bytes, or as many as there are, padded by a zero-length tail.
    pub(crate) fn bytes(&mut self, length: usize) -> &'a [u8] {
        const ZEROS: &[u8] = &[0; 512];
        if self.0.len() < length {
            self.0 = &[];
            return &ZEROS[..length.min(ZEROS.len())];
        }
        let (bytes, rest) = self.0.split_at(length);
        self.0 = rest;
        bytes
    }

    /// Everything that is left.
    pub(crate) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }
}
