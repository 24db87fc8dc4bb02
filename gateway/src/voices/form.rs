//! The form that brings a voice: `multipart/form-data`, bounded in bytes, parts and time.

use std::time::Duration;

use axum::extract::multipart::{Field, Multipart, MultipartError};
use axum::extract::{DefaultBodyLimit, FromRequest, Request};
use axum::http::{HeaderMap, StatusCode, header};
use proto::catalog::{CLONE_MODES, TRANSCRIPT_CHARACTERS_MAX};

use super::intake::Intake;
use super::record::{Mode, Sharing};
use crate::bodies::Room;
use crate::error::ApiError;

/// A form must have arrived by then.
const TIMEOUT: Duration = Duration::from_secs(60);
const PARTS_MAX: usize = 16;
/// Bytes of a form beside its file: fields, their heads and borders.
pub(super) const FIELDS_BYTES_MAX: usize = 65_536;
pub(crate) const NAME_CHARACTERS_MAX: usize = 128;
pub(crate) const CONSENT_CHARACTERS_MAX: usize = 4_000;
pub(crate) const LANGUAGE_CHARACTERS_MAX: usize = 64;
const FIELDS: &str = "name, audio, consent, transcript, language, mode, sharing";

/// What a form said.
#[derive(Debug, Default)]
pub(super) struct Form {
    pub(super) name: String,
    pub(super) audio: Vec<u8>,
    pub(super) consent: String,
    pub(super) transcript: Option<String>,
    pub(super) language: Option<String>,
    pub(super) mode: Option<Mode>,
    pub(super) sharing: Sharing,
}

/// Whole bytes of a form whose file is at most `file_max`.
pub(super) const fn bytes_max(file_max: usize) -> usize {
    file_max + FIELDS_BYTES_MAX
}

/// The form, and the room that it takes.
///
/// # Errors
/// 413 before a body that says it is too long is read, 415 for another kind of body, 400 for a wrong field, 503
/// without room.
pub(super) async fn read(request: Request, file_max: usize, room: Room) -> Result<(Form, Room), ApiError> {
    check_head(request.headers(), file_max)?;
    let intake = Intake::new(room);
    let (head, body) = request.into_parts();
    let mut request = Request::from_parts(head, intake.of(body));
    DefaultBodyLimit::max(bytes_max(file_max)).apply(&mut request);
    let form = Multipart::from_request(request, &()).await.map_err(|rejection| {
        invalid("multipart", &format!("the form cannot be read: {}", rejection.body_text()))
    })?;
    let late = || {
        let message = "the form did not arrive in time";
        ApiError::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", message)
    };
    let form = tokio::time::timeout(TIMEOUT, collect(form, file_max, &intake)).await;
    // The library knows of a body only that it broke off; whoever read it knows why.
    let form = form.unwrap_or_else(|_| Err(late())).map_err(|error| intake.refusal().unwrap_or(error))?;
    Ok((form, intake.into_room()))
}

fn check_head(headers: &HeaderMap, file_max: usize) -> Result<(), ApiError> {
    let unsupported = |message: &str| {
        Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message))
    };
    if headers.get(header::CONTENT_ENCODING).is_some_and(|value| value != "identity") {
        return unsupported("send the body without Content-Encoding");
    }
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("multipart/form-data") {
        return unsupported("send a form, with Content-Type: multipart/form-data");
    }
    let length = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    match length.and_then(|value| value.parse::<u64>().ok()) {
        Some(length) if length > bytes_max(file_max) as u64 => Err(too_large(file_max)),
        _ => Ok(()),
    }
}

async fn collect(mut parts: Multipart, file_max: usize, intake: &Intake) -> Result<Form, ApiError> {
    let broken = |error: MultipartError| match error.status() {
        StatusCode::PAYLOAD_TOO_LARGE => too_large(file_max),
        _ => invalid("multipart", "the form breaks off or its parts cannot be told apart"),
    };
    let mut form = Form::default();
    let mut given: Vec<String> = Vec::new();
    while let Some(field) = parts.next_field().await.map_err(broken)? {
        let name = field.name().unwrap_or_default().to_owned();
        if given.contains(&name) || given.len() >= PARTS_MAX {
            return Err(ApiError::bad_request("duplicate_field", "a part stands twice in the form")
                .param(shown(&name)));
        }
        match name.as_str() {
            "audio" | "audio_sample" | "file" => {
                if !form.audio.is_empty() {
                    return Err(ApiError::bad_request("duplicate_field", "one file, once").param("audio"));
                }
                form.audio = bytes(field, file_max, Some(intake)).await?;
            }
            "name" => form.name = text(field, "name", NAME_CHARACTERS_MAX).await?,
            "consent" => form.consent = text(field, "consent", CONSENT_CHARACTERS_MAX).await?,
            "transcript" => {
                form.transcript = filled(text(field, "transcript", TRANSCRIPT_CHARACTERS_MAX).await?)
            }
            "language" => form.language = filled(text(field, "language", LANGUAGE_CHARACTERS_MAX).await?),
            "mode" => {
                let word = exact(field, "mode", 64).await?;
                let found = CLONE_MODES.iter().find(|(name, _)| *name == word);
                let (_, mode) = found.ok_or_else(|| out_of_range("mode", "in_context or speaker"))?;
                form.mode = Some((*mode).into());
            }
            "sharing" => {
                form.sharing = match exact(field, "sharing", 64).await?.as_str() {
                    "subject" => Sharing::Subject,
                    "tenant" => Sharing::Tenant,
                    "everyone" => Sharing::Everyone,
                    _ => return Err(out_of_range("sharing", "subject, tenant or everyone")),
                };
            }
            _ => {
                let message = format!(
                    "unknown part {:?}; known: {FIELDS}. A clip comes as bytes, never as a path or a URL",
                    shown(&name)
                );
                return Err(ApiError::bad_request("unknown_field", message).param(shown(&name)));
            }
        }
        given.push(name);
    }
    complete(form)
}

fn complete(form: Form) -> Result<Form, ApiError> {
    let missing = |name: &str, hint: &str| {
        Err(ApiError::bad_request("missing_field", format!("the part {name:?} is missing: {hint}"))
            .param(name))
    };
    if form.name.is_empty() || form.name.chars().any(char::is_control) {
        return missing("name", "what the voice is called, without control characters");
    }
    if form.language.iter().any(|language| language.chars().any(char::is_control)) {
        return Err(out_of_range("language", "a name without control characters"));
    }
    if form.audio.is_empty() {
        return missing("audio", "the clip: a WAV, FLAC, MP3, Ogg or WebM file of 1 to 30 s");
    }
    if form.consent.is_empty() {
        return missing("consent", "what the speaker agreed to, in words; it is kept with the clip");
    }
    if form.mode == Some(Mode::InContext) && form.transcript.is_none() {
        return missing("transcript", "in-context cloning needs the exact words of the clip");
    }
    Ok(form)
}

/// A part's bytes; those of the file are told to `file`.
async fn bytes(mut field: Field<'_>, max: usize, file: Option<&Intake>) -> Result<Vec<u8>, ApiError> {
    let mut bytes = Vec::new();
    while let Some(piece) = field.chunk().await.map_err(|error| match error.status() {
        StatusCode::PAYLOAD_TOO_LARGE => too_large(max),
        _ => invalid("multipart", "the form breaks off"),
    })? {
        if bytes.len() + piece.len() > max {
            return Err(too_large(max));
        }
        if let Some(intake) = file {
            intake.of_the_file(piece.len());
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}

/// A text as it came.
async fn exact(field: Field<'_>, name: &str, characters_max: usize) -> Result<String, ApiError> {
    let bytes = bytes(field, FIELDS_BYTES_MAX, None).await?;
    let text = String::from_utf8(bytes).map_err(|_| out_of_range(name, "UTF-8"))?;
    if text.chars().count() > characters_max {
        return Err(out_of_range(name, &format!("at most {characters_max} characters")));
    }
    Ok(text)
}

/// A text without what stands around it. The bound is of what came, which is all that a schema can count.
async fn text(field: Field<'_>, name: &str, characters_max: usize) -> Result<String, ApiError> {
    Ok(exact(field, name, characters_max).await?.trim().to_owned())
}

fn filled(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

fn too_large(file_max: usize) -> ApiError {
    let message = format!("the clip must be at most {file_max} bytes");
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message).param("audio")
}

fn out_of_range(name: &str, bound: &str) -> ApiError {
    ApiError::bad_request("field_out_of_range", format!("{name} must be {bound}")).param(name)
}

fn invalid(what: &str, message: &str) -> ApiError {
    ApiError::bad_request("bad_form", message).param(what)
}

fn shown(name: &str) -> String {
    name.chars().filter(|c| !c.is_control()).take(64).collect()
}
