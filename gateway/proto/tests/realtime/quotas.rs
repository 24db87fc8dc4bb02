//! What a tenant may ask for in a minute, as its clients are told.

use std::sync::{Arc, Mutex};

use contract::{FinishReason, Span, Tick};
use proto::quota::{Level, Meter, Quotas, Rates};
use proto::wire::WireError;
use serde_json::json;

use crate::client::Client;

/// A tenant with this session alone.
#[derive(Debug)]
struct Alone(Mutex<Meter>);

const RATES: Rates = Rates { requests: 2, characters: 600 };

impl Quotas for Alone {
    fn begin(&self, now: Tick) -> Result<(), WireError> {
        self.0.lock().expect("no panic").begin(now, RATES)
    }

    fn take_characters(&self, now: Tick, characters: u64) {
        self.0.lock().expect("no panic").take_characters(now, RATES, characters);
    }

    fn levels(&self, now: Tick) -> Vec<Level> {
        self.0.lock().expect("no panic").levels(now, RATES)
    }
}

#[test]
fn each_response_tells_where_the_quotas_stand_after_its_beginning() {
    let mut client = Client::bounded(Arc::new(Alone(Mutex::default())));
    for (remaining, tokens) in [(1, 600), (0, 588)] {
        client.say("Hello there.");
        let kinds = client.ask(&json!({}));
        assert_eq!(kinds[..3], ["response.created", "rate_limits.updated", "response.output_item.added"]);
        let limits = &client.last("rate_limits.updated")["rate_limits"];
        let reset = f64::from(2 - remaining) * 30.0;
        assert_eq!(
            limits[0],
            json!({ "name": "requests", "limit": 2, "remaining": remaining, "reset_seconds": reset })
        );
        assert_eq!((&limits[1]["name"], &limits[1]["remaining"]), (&"tokens".into(), &tokens.into()));
        client.speak(2);
        client.finish(FinishReason::Done, None);
    }
}

#[test]
fn a_quota_that_is_used_up_fails_the_response_and_no_clients_loop() {
    let mut client = Client::bounded(Arc::new(Alone(Mutex::default())));
    for _ in 0..2 {
        client.say("Hello there.");
        client.ask(&json!({}));
        client.finish(FinishReason::Done, None);
    }
    client.say("Once more.");
    let kinds = client.ask(&json!({ "metadata": { "n": "3" } }));
    assert_eq!(kinds.first().map(String::as_str), Some("response.created"));
    assert_eq!((client.errors(), client.contexts.len()), (Vec::new(), 2));
    let done = client.last("response.done")["response"].clone();
    assert_eq!((&done["status"], &done["metadata"]["n"]), (&"failed".into(), &"3".into()));
    let error = &done["status_details"]["error"];
    assert_eq!((&error["type"], &error["code"]), (&"rate_limit_error".into(), &"rate_limit_exceeded".into()));
    client.now += Span::from_millis(30_000);
    client.say("And again.");
    client.ask(&json!({}));
    assert_eq!(client.contexts.len(), 3, "half a minute later there is room");
}

#[test]
fn without_quotas_nothing_is_told_of_them() {
    let mut client = Client::new();
    client.say("Hello there.");
    assert!(!client.ask(&json!({})).contains(&"rate_limits.updated".to_owned()));
}
