//! Which web pages may talk to this server, and which names it answers to.

use axum::http::{HeaderMap, Uri, header};

use crate::error::ApiError;
use crate::http::is_loopback;

/// Names and pages that are let in.
#[derive(Clone, Debug)]
pub(crate) struct Origins {
    /// Exactly as browsers send them.
    allowed: Vec<String>,
    /// In lower case; empty for any, once the server has keys.
    hosts: Vec<String>,
    /// Without keys only pages of this very server are let in, and only under loopback names: any page on
    /// the visitor's machine could otherwise speak through it.
    open: bool,
}

/// How a page stands to this server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Page {
    /// No page: a program sends no Origin.
    None,
    /// Its own.
    Own,
    /// Another, on the list: CORS answers name it.
    Listed(String),
}

impl Origins {
    /// Of a server without keys.
    pub(crate) const fn open() -> Self {
        Self { allowed: Vec::new(), hosts: Vec::new(), open: true }
    }

    /// # Errors
    /// The entry that browsers would never send in this form.
    pub(crate) fn new(allowed: &[String], hosts: &[String], open: bool) -> Result<Self, String> {
        for origin in allowed {
            if !is_origin(origin) {
                return Err(format!(
                    "{origin:?} is no origin as browsers send it: scheme://host or scheme://host:port, lower case, \
                     ASCII (xn-- for other scripts), no path, no default port"
                ));
            }
        }
        Ok(Self { allowed: allowed.to_vec(), hosts: hosts.to_vec(), open })
    }

    /// # Errors
    /// `origin_not_allowed`: the page is a stranger's.
    pub(crate) fn check(&self, headers: &HeaderMap, secure: bool) -> Result<Page, ApiError> {
        let mut given = headers.get_all(header::ORIGIN).iter();
        let (Some(origin), None) = (given.next(), given.next()) else {
            return if headers.contains_key(header::ORIGIN) { Err(refused()) } else { Ok(Page::None) };
        };
        let Ok(origin) = origin.to_str() else { return Err(refused()) };
        if self.allowed.iter().any(|allowed| allowed == origin) {
            return Ok(Page::Listed(origin.to_owned()));
        }
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        let own = origin.split_once("://").is_some_and(|(scheme, rest)| {
            // Behind a proxy that ends TLS the scheme is not ours to know. With keys nothing hangs on it.
            let scheme_fits = if secure {
                scheme == "https"
            } else {
                scheme == "http" || (scheme == "https" && !self.open)
            };
            scheme_fits
                && !host.is_empty()
                && host.eq_ignore_ascii_case(rest)
                && (!self.open || is_loopback(rest))
        });
        if own { Ok(Page::Own) } else { Err(refused()) }
    }

    /// # Errors
    /// `host_not_allowed`: a page elsewhere could have its own name point here (DNS rebinding) and then
    /// read what we answer.
    pub(crate) fn check_host(&self, headers: &HeaderMap, uri: &Uri) -> Result<(), ApiError> {
        let host = match uri.authority() {
            Some(authority) => Some(authority.as_str()),
            None => headers.get(header::HOST).and_then(|value| value.to_str().ok()),
        };
        let Some(host) = host.filter(|host| !host.is_empty()) else { return Err(self.foreign_host()) };
        let name = host.rsplit_once(':').filter(|(_, port)| port.bytes().all(|digit| digit.is_ascii_digit()));
        let name = name.map_or(host, |(name, _)| name).to_ascii_lowercase();
        let any = !self.open && self.hosts.is_empty();
        if any || is_loopback(host) || self.hosts.contains(&name) { Ok(()) } else { Err(self.foreign_host()) }
    }

    fn foreign_host(&self) -> ApiError {
        let message = if self.hosts.is_empty() {
            "the Host header must name a loopback address (localhost, 127.0.0.1 or [::1])"
        } else {
            "the Host header must name one of this server's names"
        };
        ApiError::new(axum::http::StatusCode::FORBIDDEN, "host_not_allowed", message).param("Host")
    }
}

fn refused() -> ApiError {
    let message =
        "this origin may not connect; open the page from this server, or have it listed in auth.origins";
    ApiError::new(axum::http::StatusCode::FORBIDDEN, "origin_not_allowed", message).param("Origin")
}

/// Whether a browser could send this (RFC 6454 section 6.2): nothing else would ever match.
fn is_origin(text: &str) -> bool {
    let Some((scheme, rest)) = text.split_once("://") else { return false };
    let (host, port) = match rest.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (rest, None),
    };
    let default_port = matches!((scheme, port), ("http", Some("80")) | ("https", Some("443")));
    let port_fits =
        port.is_none_or(|port| port.parse::<u16>().is_ok_and(|number| number > 0 && !port.starts_with('0')));
    let host_fits = !host.is_empty()
        && host
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-[]:".contains(&byte));
    let scheme_fits = !scheme.is_empty()
        && scheme
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"+-.".contains(&byte));
    scheme_fits && host_fits && port_fits && !default_port
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn check(origins: &Origins, origin: Option<&str>, host: &str, secure: bool) -> Option<Page> {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_str(host).expect("a header"));
        if let Some(origin) = origin {
            headers.insert(header::ORIGIN, HeaderValue::from_bytes(origin.as_bytes()).expect("a header"));
        }
        origins.check(&headers, secure).ok()
    }

    #[test]
    fn an_open_server_lets_in_programs_and_its_own_loopback_page_only() {
        let open = Origins::new(&[], &[], true).expect("valid");
        assert_eq!(check(&open, None, "127.0.0.1:8080", false), Some(Page::None));
        assert_eq!(check(&open, Some("http://127.0.0.1:8080"), "127.0.0.1:8080", false), Some(Page::Own));
        assert_eq!(check(&open, Some("https://localhost:8443"), "localhost:8443", true), Some(Page::Own));
        for origin in [
            "null",
            "https://127.0.0.1:8080",
            "http://127.0.0.1:8081",
            "http://127.0.0.1:8080.evil.example",
            "http://good.example.evil.example",
        ] {
            assert_eq!(check(&open, Some(origin), "127.0.0.1:8080", false), None, "{origin}");
        }
        assert_eq!(check(&open, Some("http://evil.example"), "evil.example", false), None);
    }

    #[test]
    fn listed_origins_match_exactly_and_nothing_like_them_does() {
        let allowed = ["https://good.example".to_owned(), "https://xn--bcher-kva.example:8443".to_owned()];
        let origins = Origins::new(&allowed, &[], false).expect("valid");
        let listed = |origin: &str| check(&origins, Some(origin), "voice.example", true);
        for good in &allowed {
            assert_eq!(listed(good), Some(Page::Listed(good.clone())));
        }
        assert_eq!(listed("https://voice.example"), Some(Page::Own));
        for origin in [
            "null",
            "",
            "https://good.example.evil",
            "https://evil-good.example",
            "https://good.example:8443",
            "https://good.example:443",
            "https://good.example/",
            "http://good.example",
            "HTTPS://good.example",
            "https://Good.example",
            "https://xn--bcher-kva.example",
            "https://bücher.example:8443",
            "https://good.example, https://evil.example",
            "http://voice.example",
        ] {
            assert_eq!(listed(origin), None, "{origin}");
        }
    }

    #[test]
    fn two_origin_headers_are_refused() {
        let origins = Origins::new(&["https://good.example".to_owned()], &[], false).expect("valid");
        let mut headers = HeaderMap::new();
        headers.append(header::ORIGIN, HeaderValue::from_static("https://good.example"));
        headers.append(header::ORIGIN, HeaderValue::from_static("https://evil.example"));
        assert!(origins.check(&headers, true).is_err());
    }

    #[test]
    fn an_entry_no_browser_would_send_is_refused_at_start() {
        for entry in [
            "*",
            "good.example",
            "https://",
            "https://good.example/",
            "https://Good.example",
            "https://good.example:443",
            "https://bücher.example",
            "https://good.example:port",
            "null",
        ] {
            assert!(Origins::new(&[entry.to_owned()], &[], false).is_err(), "{entry}");
        }
        for entry in
            ["https://good.example", "http://localhost:3000", "https://[::1]:8443", "capacitor://localhost"]
        {
            assert!(Origins::new(&[entry.to_owned()], &[], false).is_ok(), "{entry}");
        }
    }

    #[test]
    fn hosts_are_loopback_without_keys_and_the_listed_ones_with_them() {
        let uri = Uri::from_static("/");
        let host = |origins: &Origins, host: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, HeaderValue::from_str(host).expect("a header"));
            origins.check_host(&headers, &uri).is_ok()
        };
        let open = Origins::new(&[], &[], true).expect("valid");
        assert!(host(&open, "127.0.0.1:8080") && host(&open, "localhost") && host(&open, "[::1]:1"));
        assert!(!host(&open, "evil.example") && !host(&open, "") && !host(&open, "127.0.0.1.evil.example"));
        let listed = Origins::new(&[], &["voice.example".to_owned()], false).expect("valid");
        assert!(host(&listed, "Voice.example:443") && host(&listed, "localhost:1"));
        assert!(!host(&listed, "evil.example") && !host(&listed, "voice.example.evil"));
        let any = Origins::new(&[], &[], false).expect("valid");
        assert!(host(&any, "whatever.example") && !host(&any, ""));
        let absolute = Uri::from_static("http://evil.example/v1/models");
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_static("localhost"));
        assert!(open.check_host(&headers, &absolute).is_err(), "the target's own authority decides");
    }
}
