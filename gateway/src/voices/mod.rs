//! Voices that clients bring: read, judged, kept, found again, forgotten (docs/voices.md).
//!
//! A clip becomes a [`contract::Clip`] in one way only, [`clip::prepare`], so that the same sound has the same
//! content hash whether it is registered, given with a request, or streamed over a socket: an engine encodes
//! it once.

mod clip;
mod disk;
mod endpoints;
mod form;
mod intake;
mod manifest;
mod record;
mod resolve;
mod shelf;
mod store;

pub(crate) use clip::{ClipError, Recording, judged, prepare, record};
pub(crate) use endpoints::{create, delete, list, listing};
pub(crate) use form::{CONSENT_CHARACTERS_MAX, LANGUAGE_CHARACTERS_MAX, NAME_CHARACTERS_MAX};
pub(crate) use record::Viewer;
pub(crate) use resolve::{choose, choose_named, default_mode};
pub(crate) use shelf::Shelf;
pub(crate) use store::Store;
