//! A form's bytes on their way to the library that reads forms. It gathers all that has come before it looks, and a
//! part's head whole, however long that is: so bytes are counted, and bounded, before they reach it.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

use axum::body::{Body, BodyDataStream, Bytes};
use axum::http::StatusCode;
use futures_util::{Stream, StreamExt, stream};

use super::form::FIELDS_BYTES_MAX;
use crate::bodies::Room;
use crate::error::ApiError;

/// What has come of one form.
#[derive(Clone)]
pub(super) struct Intake(Arc<Mutex<Taken>>);

struct Taken {
    room: Option<Room>,
    /// Bytes that came and were not of the file, as far as is known: what came last may be.
    beside: usize,
    refusal: Option<ApiError>,
}

impl Intake {
    pub(super) fn new(room: Room) -> Self {
        Self(Arc::new(Mutex::new(Taken { room: Some(room), beside: 0, refusal: None })))
    }

    /// `body`, its bytes counted as they pass.
    pub(super) fn of(&self, body: Body) -> Body {
        Body::from_stream(self.clone().counted(body.into_data_stream()))
    }

    /// So many bytes of what has come are the file's.
    pub(super) fn of_the_file(&self, bytes: usize) {
        self.with(|taken| taken.beside = taken.beside.saturating_sub(bytes));
    }

    /// Why the body was cut off here, if it was.
    pub(super) fn refusal(&self) -> Option<ApiError> {
        self.with(|taken| taken.refusal.take())
    }

    /// The room that the whole form takes.
    pub(super) fn into_room(self) -> Room {
        self.with(|taken| taken.room.take()).expect("a form is read once")
    }

    fn counted(
        self,
        mut pieces: BodyDataStream,
    ) -> impl Stream<Item = Result<Bytes, axum::Error>> + Send + use<> {
        // Between two pieces the library is made to look at the first.
        let mut rests = false;
        stream::poll_fn(move |context| {
            if std::mem::take(&mut rests) {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            let piece = std::task::ready!(pieces.poll_next_unpin(context));
            rests = true;
            Poll::Ready(piece.map(|piece| {
                let piece = piece?;
                self.take(piece.len()).map_err(axum::Error::new)?;
                Ok(piece)
            }))
        })
    }

    fn take(&self, bytes: usize) -> Result<(), ApiError> {
        self.with(|taken| {
            let taking = if taken.beside > FIELDS_BYTES_MAX {
                Err(too_much())
            } else {
                taken.beside += bytes;
                taken.room.as_mut().map_or(Ok(()), |room| room.take(bytes))
            };
            if let Err(error) = &taking {
                taken.refusal = Some(error.clone());
            }
            taking
        })
    }

    fn with<T>(&self, what: impl FnOnce(&mut Taken) -> T) -> T {
        what(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn too_much() -> ApiError {
    let message = format!("a form must be at most {FIELDS_BYTES_MAX} bytes beside its file");
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
}
