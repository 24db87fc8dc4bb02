//! Text for the ear: what stands written, in the words it is said in, and where a speaker pauses.
//!
//! | module | what it does |
//! |---|---|
//! | [`Ear`] | takes text in as it streams and gives it out as it is said, span by span |
//! | [`Language`] | the hook: how the words of one language are read; [`english`] is built in |
//! | [`Lexicon`] | respellings of single words, a tenant's own |
//! | [`English`] | numbers, dates, times, money, units, addresses, abbreviations, emoji |
//!
//! Pure: no clock, no IO. Where the text was cut into pieces never changes what comes out, with the one
//! exception of [`Ear::release`]. Nothing is lost: the originals of all spans in order are the text.

mod english;
mod language;
mod lexicon;
mod markup;
mod stream;
mod word;

pub use english::English;
pub use language::{Context, Language, Reading, language};
pub use lexicon::{Lexicon, LexiconError, RESPELLING_CHARACTERS_MAX, WORD_CHARACTERS_MAX, WORDS_MAX};
pub use markup::{PARAGRAPH_MS, PAUSE_MS_MAX};
pub use stream::{Ear, HELD_CHARACTERS_MAX, Span};
pub use word::Word;
