//! The token a request carries, if it carries exactly one.

use axum::http::{HeaderMap, header};

/// Subprotocol items that carry a token: ours, and the one that OpenAI's browser clients offer.
const SUBPROTOCOLS: [&str; 2] = ["bearer.", "openai-insecure-api-key."];
/// Headers whose whole value is the key, as clients of other services send it.
const KEY_HEADERS: [&str; 2] = ["x-api-key", "xi-api-key"];

/// Where a token was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Carried {
    Nothing,
    Header(String),
    /// Only a browser's way: it cannot set headers on a WebSocket.
    Subprotocol(String),
    /// Two that differ, or one that cannot be read.
    Unclear,
}

/// Looks in the headers, and nowhere else: a URL stands in logs, histories and Referer headers.
pub(super) fn find(headers: &HeaderMap) -> Carried {
    let mut found = Carried::Nothing;
    let mut add = |next: Option<Carried>| {
        found = match (&found, next) {
            (_, None) => Carried::Unclear,
            (Carried::Nothing, Some(next)) => next,
            (held, Some(next)) if *held == next => next,
            _ => Carried::Unclear,
        };
    };
    for value in headers.get_all(header::AUTHORIZATION) {
        let token = value.to_str().ok().and_then(|text| text.split_once(' ')).and_then(|(scheme, token)| {
            scheme.eq_ignore_ascii_case("bearer").then(|| Carried::Header(token.trim().to_owned()))
        });
        add(token);
    }
    for name in KEY_HEADERS {
        for value in headers.get_all(name) {
            add(value.to_str().ok().map(|token| Carried::Header(token.trim().to_owned())));
        }
    }
    if headers.contains_key(header::UPGRADE) {
        for value in headers.get_all(header::SEC_WEBSOCKET_PROTOCOL) {
            for item in value.to_str().unwrap_or_default().split(',').map(str::trim) {
                if let Some(token) = SUBPROTOCOLS.iter().find_map(|prefix| item.strip_prefix(prefix)) {
                    add(Some(Carried::Subprotocol(token.to_owned())));
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};

    use super::*;

    fn carried(headers: &[(&str, &str)]) -> Carried {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let name = HeaderName::from_bytes(name.as_bytes()).expect("a name");
            map.append(name, HeaderValue::from_str(value).expect("a value"));
        }
        find(&map)
    }

    #[test]
    fn one_token_is_found_wherever_clients_put_it() {
        let header = Carried::Header("t".to_owned());
        assert_eq!(carried(&[("authorization", "Bearer t")]), header);
        assert_eq!(carried(&[("authorization", "bearer  t ")]), header);
        assert_eq!(carried(&[("xi-api-key", "t")]), header);
        assert_eq!(carried(&[("x-api-key", "t"), ("authorization", "Bearer t")]), header);
        let offered = ("sec-websocket-protocol", "voxlane.v1, bearer.t");
        assert_eq!(carried(&[("upgrade", "websocket"), offered]), Carried::Subprotocol("t".to_owned()));
        let offered = ("sec-websocket-protocol", "realtime,openai-insecure-api-key.t");
        assert_eq!(carried(&[("upgrade", "websocket"), offered]), Carried::Subprotocol("t".to_owned()));
    }

    #[test]
    fn two_tokens_or_an_unreadable_one_are_unclear() {
        assert_eq!(carried(&[]), Carried::Nothing);
        assert_eq!(carried(&[("authorization", "Basic dTpw")]), Carried::Unclear);
        assert_eq!(
            carried(&[("authorization", "Bearer a"), ("authorization", "Bearer b")]),
            Carried::Unclear
        );
        assert_eq!(carried(&[("authorization", "Bearer a"), ("x-api-key", "b")]), Carried::Unclear);
        // Without an upgrade a subprotocol is only a header.
        assert_eq!(carried(&[("sec-websocket-protocol", "bearer.t")]), Carried::Nothing);
    }
}
