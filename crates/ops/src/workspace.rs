/// Hands out the words of a CUDA workspace. Each range begins at a multiple of 256 bytes.
#[derive(Default)]
pub(crate) struct Workspace {
    words: usize,
}

impl Workspace {
    /// So many words: where they begin.
    pub(crate) fn take(&mut self, words: usize) -> usize {
        let at = self.words;
        self.words += words.next_multiple_of(64);
        at
    }

    /// So many bytes: the word where they begin.
    pub(crate) fn take_bytes(&mut self, bytes: usize) -> usize {
        self.take(bytes.div_ceil(4))
    }

    /// Words in all.
    pub(crate) fn words(&self) -> usize {
        self.words
    }
}
