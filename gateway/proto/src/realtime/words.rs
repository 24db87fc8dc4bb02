//! Events as they stand on the wire, and the ids in them.

use serde_json::{Map, Value, json};

use crate::dialect::Step;
use crate::wire::ErrorObject;

/// Numbers what the server names. The session's own id keeps two sessions' items apart.
#[derive(Clone, Debug, Default)]
pub(super) struct Ids {
    session: String,
    events: u64,
    items: u64,
    responses: u64,
}

impl Ids {
    pub(super) fn new(session: &str) -> Self {
        Self { session: session.to_owned(), ..Self::default() }
    }

    pub(super) fn session(&self) -> String {
        format!("sess_{}", self.session)
    }

    pub(super) fn conversation(&self) -> String {
        format!("conv_{}", self.session)
    }

    pub(super) fn item(&mut self) -> String {
        self.items += 1;
        format!("item_{}_{}", self.session, self.items)
    }

    pub(super) fn response(&mut self) -> String {
        self.responses += 1;
        format!("resp_{}_{}", self.session, self.responses)
    }

    fn event(&mut self) -> String {
        self.events += 1;
        format!("event_{}_{}", self.session, self.events)
    }
}

/// Where events go.
pub(super) struct Words<'a> {
    pub(super) ids: &'a mut Ids,
    pub(super) steps: &'a mut Vec<Step>,
}

impl Words<'_> {
    /// One event. `fields` is an object.
    pub(super) fn say(&mut self, kind: &str, fields: Value) {
        let mut event = match fields {
            Value::Object(fields) => fields,
            _ => Map::new(),
        };
        event.insert("type".to_owned(), kind.into());
        event.insert("event_id".to_owned(), self.ids.event().into());
        self.steps.push(Step::Text(Value::Object(event).to_string()));
    }

    /// A client's mistake. `event_id` is that of the event it made it in.
    pub(super) fn refuse(&mut self, mistake: &Mistake, event_id: Option<&str>) {
        self.error("invalid_request_error", mistake.code, &mistake.message, mistake.param, event_id);
    }

    /// An error of the session's own.
    pub(super) fn fail(&mut self, error: &ErrorObject, event_id: Option<&str>) {
        self.error(kind_of(error), &error.code, &error.message, error.param.as_deref(), event_id);
    }

    fn error(&mut self, kind: &str, code: &str, message: &str, param: Option<&str>, event_id: Option<&str>) {
        let error = json!({
            "type": kind, "code": code, "message": message, "param": param, "event_id": event_id,
        });
        self.say("error", json!({ "error": error }));
    }
}

/// `error.type` as clients of this protocol know it.
pub(super) fn kind_of(error: &ErrorObject) -> &'static str {
    match error.kind.as_str() {
        "overloaded_error" | "server_error" | "unavailable_error" => "server_error",
        "rate_limit_error" => "rate_limit_error",
        _ => "invalid_request_error",
    }
}

/// What is wrong with an event. The session goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    pub code: &'static str,
    pub message: String,
    pub param: Option<&'static str>,
}

impl Mistake {
    pub(super) fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), param: None }
    }

    pub(super) fn at(self, param: &'static str) -> Self {
        Self { param: Some(param), ..self }
    }
}
