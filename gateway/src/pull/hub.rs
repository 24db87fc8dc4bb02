//! The hub's HTTP interface: what a repository holds, and one file from a byte on.

use std::time::Duration;

use reqwest::header::{AUTHORIZATION, CONTENT_RANGE, HeaderMap, HeaderValue, LOCATION, RANGE, RETRY_AFTER};
use reqwest::{Client, Response, StatusCode, Url};
use serde::Deserialize;

use super::error::PullError;
use super::name::RepoName;

/// The hub, unless `HF_ENDPOINT` names another.
const ENDPOINT: &str = "https://huggingface.co";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// Longest silence in the middle of an answer.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
const REDIRECTS_MAX: usize = 5;
/// Longest listing of a repository.
const LISTING_BYTES_MAX: usize = 16 << 20;
/// A wait that the hub asks for and gets; a longer one is the caller's to wait.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// A hub, as one user sees it.
#[derive(Debug)]
pub(super) struct Hub {
    endpoint: Url,
    token: Option<HeaderValue>,
    client: Client,
}

/// One file as the hub lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Listed {
    pub(super) path: String,
    pub(super) size: u64,
    pub(super) content: Content,
}

/// By which a file's content is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// SHA-1 of a git blob: the size, then the bytes.
    Blob(String),
    Sha256(String),
}

/// A repository at one commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Listing {
    pub(super) commit: String,
    pub(super) files: Vec<Listed>,
}

/// What a request for a file from some byte on was answered with.
pub(super) enum Body {
    /// From that byte on.
    From(Response),
    /// From the first byte on.
    Whole(Response),
    /// There is nothing from that byte on.
    Beyond,
}

#[derive(Deserialize)]
struct Answer {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    #[serde(default)]
    size: u64,
    #[serde(default, rename = "blobId")]
    blob: String,
    lfs: Option<Large>,
}

#[derive(Deserialize)]
struct Large {
    #[serde(alias = "oid")]
    sha256: String,
    size: u64,
}

impl Hub {
    /// # Errors
    /// An endpoint that cannot be, or to which a token would go in the clear.
    pub(super) fn new(endpoint: Option<&str>, token: Option<&str>) -> Result<Self, PullError> {
        let wrong = |what: String| PullError::Endpoint(what);
        let endpoint = Url::parse(endpoint.unwrap_or(ENDPOINT)).map_err(|error| wrong(error.to_string()))?;
        if !is_safe(&endpoint) || endpoint.cannot_be_a_base() {
            return Err(wrong("must be https, or http on this machine".to_owned()));
        }
        // A file's line end, as a secret that is read from one may have it, is no part of the token.
        let token = token.map(str::trim).filter(|token| !token.is_empty()).map(|token| {
            let mut value = HeaderValue::try_from(format!("Bearer {token}"))?;
            value.set_sensitive(true);
            Ok::<_, reqwest::header::InvalidHeaderValue>(value)
        });
        let token = token.transpose().map_err(|_| PullError::UnreadableToken)?;
        let client = Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(READ_TIMEOUT)
            // Followed here, so that the token goes to the hub and nowhere else.
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("voxlane/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| wrong(format!("no TLS client: {error}")))?;
        Ok(Self { endpoint, token, client })
    }

    /// What the repository holds at its revision.
    ///
    /// # Errors
    /// Who may not see it, what does not exist, and answers that make no sense.
    pub(super) async fn list(&self, repo: &RepoName) -> Result<Listing, PullError> {
        let what = format!("{}/{}@{}", repo.owner, repo.name, repo.revision);
        let mut url = self.url(&["api", "models", &repo.owner, &repo.name, "revision", &repo.revision]);
        url.set_query(Some("blobs=true"));
        let mut answer = self.get(url, &what, None).await?;
        let mut bytes = Vec::new();
        while let Some(piece) = answer.chunk().await.map_err(|error| cut(&what, error))? {
            if bytes.len() + piece.len() > LISTING_BYTES_MAX {
                return Err(unusable(&what, format!("it is longer than {LISTING_BYTES_MAX} bytes")));
            }
            bytes.extend_from_slice(&piece);
        }
        let answer: Answer =
            serde_json::from_slice(&bytes).map_err(|error| unusable(&what, error.to_string()))?;
        if !is_hex(&answer.sha, 40) {
            return Err(unusable(&what, "it names no commit".to_owned()));
        }
        let files: Result<Vec<_>, _> = answer.siblings.into_iter().map(|file| listed(&what, file)).collect();
        Ok(Listing { commit: answer.sha, files: files? })
    }

    /// A file of a commit, from byte `from` on.
    ///
    /// # Errors
    /// As [`Hub::list`].
    pub(super) async fn open(
        &self,
        repo: &RepoName,
        commit: &str,
        path: &str,
        from: u64,
    ) -> Result<Body, PullError> {
        let mut parts = vec![repo.owner.as_str(), &repo.name, "resolve", commit];
        parts.extend(path.split('/'));
        let answer = self.get(self.url(&parts), path, (from > 0).then_some(from)).await?;
        match answer.status() {
            StatusCode::RANGE_NOT_SATISFIABLE => Ok(Body::Beyond),
            StatusCode::PARTIAL_CONTENT => {
                let range = answer.headers().get(CONTENT_RANGE).and_then(|value| value.to_str().ok());
                let starts =
                    range.and_then(|range| range.strip_prefix("bytes ")?.split('-').next()?.parse().ok());
                if starts == Some(from) {
                    return Ok(Body::From(answer));
                }
                Err(unusable(path, format!("it was asked for from byte {from} on and gave another part")))
            }
            _ => Ok(Body::Whole(answer)),
        }
    }

    fn url(&self, parts: &[&str]) -> Url {
        let mut url = self.endpoint.clone();
        // Looked at when it was read: this endpoint can be a base.
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(parts);
        }
        url
    }

    /// An answer of success, or to a range that cannot be had.
    async fn get(&self, mut url: Url, what: &str, from: Option<u64>) -> Result<Response, PullError> {
        for _ in 0..=REDIRECTS_MAX {
            let mut headers = HeaderMap::new();
            if let Some(from) = from {
                headers
                    .insert(RANGE, HeaderValue::try_from(format!("bytes={from}-")).map_err(|_| odd(what))?);
            }
            if let Some(token) = self.token.as_ref().filter(|_| url.origin() == self.endpoint.origin()) {
                headers.insert(AUTHORIZATION, token.clone());
            }
            let answer = self.client.get(url.clone()).headers(headers).send().await;
            let answer = answer.map_err(|error| cut(what, error))?;
            let status = answer.status();
            if !status.is_redirection() {
                return if status.is_success() || status == StatusCode::RANGE_NOT_SATISFIABLE {
                    Ok(answer)
                } else {
                    Err(self.refused(what, &answer))
                };
            }
            let next = answer.headers().get(LOCATION).and_then(|value| value.to_str().ok());
            let next = next.and_then(|next| url.join(next).ok()).ok_or_else(|| odd(what))?;
            // To this machine only from this machine.
            if !is_safe(&next) || (next.scheme() == "http" && self.endpoint.scheme() != "http") {
                return Err(unusable(what, "it leads to an address without TLS".to_owned()));
            }
            url = next;
        }
        Err(unusable(what, format!("it leads on more than {REDIRECTS_MAX} times")))
    }

    fn refused(&self, what: &str, answer: &Response) -> PullError {
        let what = what.to_owned();
        match answer.status() {
            StatusCode::UNAUTHORIZED if self.token.is_none() => PullError::NoToken { what },
            StatusCode::UNAUTHORIZED => PullError::BadToken { what },
            StatusCode::FORBIDDEN => PullError::Forbidden { what },
            StatusCode::NOT_FOUND => PullError::NotFound { what },
            StatusCode::TOO_MANY_REQUESTS => PullError::TooMany { what, seconds: retry_after(answer) },
            status => PullError::Status { what, status: status.as_u16() },
        }
    }
}

/// How long to wait before asking again, if asking again may help.
pub(super) fn wait_before_retry(error: &PullError, tries: u32) -> Option<Duration> {
    let doubled = Duration::from_millis(500) * 2_u32.saturating_pow(tries.min(5));
    match error {
        PullError::TooMany { seconds, .. } => {
            let wait = seconds.map_or(doubled, |seconds| Duration::from_secs(seconds.into()));
            (wait <= WAIT_MAX).then_some(wait)
        }
        PullError::Status { status, .. } => (*status >= 500).then_some(doubled),
        PullError::Cut { .. } => Some(doubled),
        _ => None,
    }
}

fn retry_after(answer: &Response) -> Option<u32> {
    answer.headers().get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()
}

/// TLS, or this very machine.
fn is_safe(url: &Url) -> bool {
    let local = url.host_str().is_some_and(crate::http::is_loopback);
    url.scheme() == "https" || (url.scheme() == "http" && local)
}

fn listed(what: &str, file: Sibling) -> Result<Listed, PullError> {
    let Sibling { rfilename: path, size, blob, lfs } = file;
    let known = match lfs {
        Some(large) if is_hex(&large.sha256, 64) => Some((large.size, Content::Sha256(large.sha256))),
        None if is_hex(&blob, 40) => Some((size, Content::Blob(blob))),
        _ => None,
    };
    let (size, content) = known.ok_or_else(|| unusable(what, format!("{path:?} has no checksum")))?;
    Ok(Listed { path, size, content })
}

fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The library's texts hold the URL, which may hold a signature.
pub(super) fn cut(what: &str, error: reqwest::Error) -> PullError {
    let error = error.without_url();
    let mut reason = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        reason = format!("{reason}: {cause}");
        source = cause.source();
    }
    PullError::Cut { what: what.to_owned(), reason }
}

fn unusable(what: &str, reason: String) -> PullError {
    PullError::Answer { what: what.to_owned(), reason }
}

fn odd(what: &str) -> PullError {
    unusable(what, "it leads nowhere".to_owned())
}
