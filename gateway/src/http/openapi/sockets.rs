//! `GET /asyncapi.json`: what is said on every socket, as AsyncAPI 3.0. Messages are described by the types that make
//! them; those of OpenAI Realtime, which are theirs, by the names of the events that are known here; those of clients of
//! ElevenLabs and Cartesia by the tables that they are read by.

use axum::http::header;
use axum::response::{IntoResponse, Response};
use proto::{cartesia, elevenlabs, realtime, wire};
use serde_json::{Map, Value, json};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::Schema;
use utoipa::{PartialSchema, ToSchema};

/// One socket.
struct Socket {
    name: &'static str,
    /// Its path, as the router has it.
    address: &'static str,
    about: &'static str,
    /// Schemas of what clients say, and of what this server says.
    says: Value,
    hears: Value,
}

pub(in crate::http) async fn answer() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], document().to_string()).into_response()
}

/// Path of every socket, and what it is.
pub(super) fn summaries() -> impl Iterator<Item = (&'static str, &'static str)> {
    sockets().into_iter().map(|socket| (socket.address, socket.about))
}

fn document() -> Value {
    let mut schemas = Vec::new();
    schema_of::<wire::ClientMessage>(&mut schemas);
    schema_of::<wire::ServerMessage>(&mut schemas);
    schema_of::<elevenlabs::ServerMessage>(&mut schemas);
    schema_of::<cartesia::Event>(&mut schemas);
    let (mut channels, mut operations, mut messages) = (Map::new(), Map::new(), Map::new());
    for socket in sockets() {
        let Socket { name, address, about, says, hears } = socket;
        let (client, server) = (format!("{name}Client"), format!("{name}Server"));
        for (message, payload) in [(&client, says), (&server, hears)] {
            let message_of =
                json!({ "name": message, "contentType": "application/json", "payload": payload });
            messages.insert(message.clone(), message_of);
        }
        let message = |message: &str| json!({ "$ref": format!("#/components/messages/{message}") });
        let within = |message: &str| json!({ "$ref": format!("#/channels/{name}/messages/{message}") });
        let mut channel = json!({ "address": address, "description": about,
            "messages": { &client: message(&client), &server: message(&server) } });
        if address.contains("{voice}") {
            channel["parameters"] = json!({ "voice": { "description": "id or name of a voice" } });
        }
        channels.insert(name.to_owned(), channel);
        let channel = json!({ "$ref": format!("#/channels/{name}") });
        // AsyncAPI tells it from the server's side.
        let told = json!({ "action": "send", "channel": channel, "messages": [within(&server)] });
        let heard = json!({ "action": "receive", "channel": channel, "messages": [within(&client)] });
        operations.insert(format!("{name}Send"), told);
        operations.insert(format!("{name}Receive"), heard);
    }
    let schemas: Map<String, Value> = schemas
        .into_iter()
        .map(|(name, schema)| (name, serde_json::to_value(schema).unwrap_or_default()))
        .collect();
    json!({
        "asyncapi": "3.0.0",
        "info": { "title": "Voxlane", "version": env!("CARGO_PKG_VERSION"),
            "description": "The sockets of a realtime voice gateway. The pages in docs/ say when each message comes." },
        "defaultContentType": "application/json",
        "channels": channels,
        "operations": operations,
        "components": { "messages": messages, "schemas": schemas,
            "securitySchemes": { "bearer": { "type": "http", "scheme": "bearer" } } },
    })
}

fn sockets() -> [Socket; 5] {
    let named = |name: &str| json!({ "$ref": format!("#/components/schemas/{name}") });
    let event = |events: &[&str]| {
        json!({ "type": "object", "required": ["type"], "properties": {
        "type": { "type": "string", "enum": events }, "event_id": { "type": "string" } } })
    };
    [
        Socket {
            name: "native",
            address: "/v1/stream",
            about: "The native protocol, voxlane.v1. Audio goes beside these messages in binary ones: docs/protocol.md.",
            says: named(&wire::ClientMessage::name()),
            hears: named(&wire::ServerMessage::name()),
        },
        Socket {
            name: "realtime",
            address: "/v1/realtime",
            about: "OpenAI Realtime (GA). The events are OpenAI's; docs/realtime.md says what of them there is.",
            says: event(&realtime::CLIENT_EVENTS),
            hears: event(&realtime::SERVER_EVENTS),
        },
        Socket {
            name: "elevenlabsOne",
            address: "/v1/text-to-speech/{voice}/stream-input",
            about: "ElevenLabs' socket of one context: docs/elevenlabs-cartesia.md.",
            says: elevenlabs::message_schema(),
            hears: named(&elevenlabs::ServerMessage::name()),
        },
        Socket {
            name: "elevenlabsMany",
            address: "/v1/text-to-speech/{voice}/multi-stream-input",
            about: "ElevenLabs' socket of many contexts: docs/elevenlabs-cartesia.md.",
            says: elevenlabs::message_schema(),
            hears: named(&elevenlabs::ServerMessage::name()),
        },
        Socket {
            name: "cartesia",
            address: "/tts/websocket",
            about: "Cartesia's socket: docs/elevenlabs-cartesia.md.",
            says: cartesia::message_schema(),
            hears: named(&cartesia::Event::name()),
        },
    ]
}

/// The schema of a type and of all it is made of.
fn schema_of<T: ToSchema + PartialSchema>(schemas: &mut Vec<(String, RefOr<Schema>)>) {
    schemas.push((T::name().to_string(), T::schema()));
    T::schemas(schemas);
}

#[cfg(test)]
mod tests {
    use contract::Tick;
    use proto::dialect::{Dialect, Step};

    use super::*;

    /// Every field of a schema by its path, with a value of a kind that it is not.
    fn wrong(schema: &Value, path: &str, found: &mut Vec<(String, Value)>) {
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            let path = format!("{path}{name}");
            let is_text =
                field["const"].is_string() || field["type"] == "string" || field["type"][0] == "string";
            found.push((path.clone(), if is_text { json!(7) } else { json!([]) }));
            wrong(field, &format!("{path}."), found);
            wrong(&field["oneOf"][1], &format!("{path}."), found);
        }
    }

    /// `message` with `value` at `path`.
    fn with(message: &Value, path: &str, value: Value) -> Value {
        let mut message = message.clone();
        let mut at = &mut message;
        for name in path.split('.') {
            at = &mut at[name];
        }
        *at = value;
        message
    }

    #[test]
    fn every_field_that_is_told_of_elevenlabs_and_cartesia_is_read_by_that_name_and_kind() {
        let options = || {
            let query = [("output_format", "pcm_24000")];
            elevenlabs::Options::read(elevenlabs::Contexts::Many, "clara", query).expect("valid")
        };
        let eleven = json!({ "text": "Hi.", "context_id": "a", "reference": { "audio": "UklGRg==" } });
        let sonic = json!({ "transcript": "Hi.", "context_id": "a", "reference": { "audio": "UklGRg==" },
            "output_format": { "container": "raw", "encoding": "pcm_s16le", "sample_rate": 24_000 } });
        type Make<'a> = &'a dyn Fn() -> Box<dyn Dialect>;
        let cases: [(Value, Value, Make<'_>); 2] = [
            (elevenlabs::message_schema(), eleven, &|| Box::new(elevenlabs::Socket::new(options()))),
            (cartesia::message_schema(), sonic, &|| Box::new(cartesia::Socket::new())),
        ];
        for (schema, message, make) in cases {
            let said = |message: &Value| {
                let mut steps = Vec::new();
                make().handle_text(Tick::from_millis(1), &message.to_string(), &mut steps);
                let param = |step: &Step| match step {
                    Step::Unreadable(told) => told.error.param().map(str::to_owned),
                    _ => None,
                };
                steps.iter().find_map(param)
            };
            assert_eq!(said(&message), None);
            let mut fields = Vec::new();
            wrong(&schema, "", &mut fields);
            assert!(fields.len() > 9);
            for (path, value) in fields {
                assert_eq!(said(&with(&message, &path, value)), Some(path));
            }
        }
    }

    #[test]
    fn every_socket_of_the_router_is_told_of_and_no_other() {
        let source = include_str!("../mod.rs");
        let routes = source.split(".route(\"").skip(1).filter_map(|rest| rest.split_once("\", get(crate::"));
        let mut routes: Vec<&str> = routes
            .filter(|(_, handler)| handler.starts_with("stream::") || handler.starts_with("realtime::"))
            .map(|(path, _)| path)
            .collect();
        routes.sort_unstable();
        let document = document();
        let channels = document["channels"].as_object().expect("channels").values();
        let mut told: Vec<&str> = channels.filter_map(|channel| channel["address"].as_str()).collect();
        told.sort_unstable();
        assert_eq!(told, routes);
    }

    #[test]
    fn every_reference_leads_somewhere() {
        let document = document();
        let text = document.to_string();
        for reference in text.split("\"$ref\":\"#").skip(1).filter_map(|rest| rest.split('"').next()) {
            assert!(document.pointer(reference).is_some(), "{reference}");
        }
        assert!(text.contains("text.append") && text.contains("normalizedAlignment"));
        assert!(text.contains("word_timestamps") && text.contains("rate_limits.updated"));
    }
}
