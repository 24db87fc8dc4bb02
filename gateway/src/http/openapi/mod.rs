//! `GET /openapi.json`: every endpoint of the public listener, as OpenAPI 3.1 (crate `utoipa`).
//!
//! Answers are described by the types that make them; bodies by the bounds their readers hold them to. A
//! test asks every path, and `tests/clients` lets schemathesis look for what is not true of it.

mod bodies;
pub(super) mod sockets;

use std::sync::Arc;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use proto::catalog::{Listing, ModelEntry, VoiceEntry};
use proto::wire::ErrorBody;
use serde_json::Value;
use utoipa::openapi::link::Link;
use utoipa::openapi::path::{
    HttpMethod, Operation, OperationBuilder, Parameter, ParameterBuilder, ParameterIn,
};
use utoipa::openapi::request_body::{RequestBody, RequestBodyBuilder};
use utoipa::openapi::response::{ResponseBuilder, ResponsesBuilder};
use utoipa::openapi::schema::Schema;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{
    ComponentsBuilder, ContentBuilder, InfoBuilder, OpenApi, OpenApiBuilder, PathItem, PathsBuilder, Ref,
    RefOr, Required,
};
use utoipa::{PartialSchema, ToSchema};

use crate::app::App;

/// What stands at a socket's path.
const SOCKET: &str =
    "A WebSocket, described in /asyncapi.json. A request that is no upgrade is answered with 426.";

/// Statuses that any endpoint may refuse with, and what they say.
const REFUSALS: [(&str, &str); 12] = [
    ("400", "it can never succeed as it is; `code` and `param` say why"),
    ("401", "the token is missing, wrong or over"),
    ("403", "the token lacks a scope, or the page's origin is not allowed"),
    ("404", "the model, the voice or the path does not exist"),
    ("405", "not with this method; see Allow"),
    ("408", "the body did not arrive in time"),
    ("409", "the name is taken"),
    ("413", "the body is too large"),
    ("415", "another media type is expected"),
    ("429", "the tenant has all it may have"),
    ("500", "a fault of the server's"),
    ("503", "no room, starting or draining; see Retry-After"),
];

pub(super) async fn answer(State(app): State<Arc<App>>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], document(&app).to_string()).into_response()
}

/// The document, with this server's bounds.
fn document(app: &App) -> Value {
    // Only maps with keys that are no strings can fail, and there are none.
    let mut document = serde_json::to_value(typed()).unwrap_or_default();
    let info = app.handle().map(|engine| engine.info());
    let known = bodies::Known {
        characters_max: app.config.server.input_characters_max,
        languages: info.as_ref().map(|info| proto::catalog::languages(info)).unwrap_or_default(),
        instructions: info
            .as_ref()
            .is_some_and(|info| info.models.iter().any(|model| model.takes_instructions)),
    };
    for (name, body) in bodies::all(&known) {
        document["components"]["schemas"][name] = body;
    }
    document
}

/// All of it but the bodies.
fn typed() -> OpenApi {
    let mut paths = PathsBuilder::new();
    for (path, method, operation) in operations() {
        paths = paths.path(path, PathItem::new(method, operation));
    }
    for (path, summary) in sockets::summaries() {
        // No operation: what is said on it is no request and answer.
        let mut socket = PathItem::default();
        (socket.summary, socket.description) = (Some(summary.to_owned()), Some(SOCKET.to_owned()));
        if path.contains("{voice}") {
            socket.parameters = Some(vec![RefOr::T(parameter(ParameterIn::Path, "voice", bodies::text()))]);
        }
        paths = paths.path(path, socket);
    }
    let bearer = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
    let mut schemas = vec![(ErrorBody::name().to_string(), ErrorBody::schema())];
    ErrorBody::schemas(&mut schemas);
    Listing::<ModelEntry>::schemas(&mut schemas);
    Listing::<VoiceEntry>::schemas(&mut schemas);
    schemas.push((ModelEntry::name().to_string(), ModelEntry::schema()));
    schemas.push((VoiceEntry::name().to_string(), VoiceEntry::schema()));
    OpenApiBuilder::new()
        .info(
            InfoBuilder::new()
                .title("Voxlane")
                .version(env!("CARGO_PKG_VERSION"))
                .description(Some("A realtime voice gateway. The pages in docs/ say more of each endpoint.")),
        )
        .paths(paths)
        .components(Some(
            ComponentsBuilder::new().security_scheme("bearer", bearer).schemas_from_iter(schemas).build(),
        ))
        .security(Some([SecurityRequirement::new("bearer", Vec::<String>::new())]))
        .build()
}

fn operations() -> Vec<(&'static str, HttpMethod, Operation)> {
    use HttpMethod::{Delete, Get, Post};
    let json = "application/json";
    let whole = |body| Some(request(json, body));
    let timed = || whole(bodies::ELEVENLABS);
    let voice = |schema| vec![parameter(ParameterIn::Path, "voice", schema)];
    let voice_and_format = || {
        let mut format = parameter(ParameterIn::Query, "output_format", bodies::elevenlabs_format());
        if !codecs::mp3::AVAILABLE {
            // What is meant by none is MP3.
            format.required = Required::True;
        }
        voice(bodies::name()).into_iter().chain([format]).collect::<Vec<_>>()
    };
    let listing = |schema| vec![(json, schema)];
    let sound = || bodies::media_types().map(|kind| (kind, bodies::bytes())).collect::<Vec<_>>();
    let speech = sound().into_iter().chain([("text/event-stream", bodies::object())]).collect();
    vec![
        ("/v1/models", Get, plain("What is loaded.", vec![], None, listing(Listing::<ModelEntry>::schema()))),
        (
            "/v1/audio/voices",
            Get,
            plain("The voices.", vec![], None, listing(Listing::<VoiceEntry>::schema())),
        ),
        (
            "/v1/audio/voices",
            Post,
            linked(plain(
                "Keeps a clip as a voice.",
                vec![],
                Some(request("multipart/form-data", bodies::VOICE_FORM)),
                listing(VoiceEntry::schema()),
            )),
        ),
        (
            "/v1/audio/voices/{id}",
            Delete,
            plain(
                "Forgets a voice.",
                vec![parameter(ParameterIn::Path, "id", bodies::name())],
                None,
                listing(bodies::object()),
            ),
        ),
        ("/v1/audio/speech", Post, plain("Speaks a text.", vec![], whole(bodies::SPEECH), speech)),
        (
            "/v1/realtime/client_secrets",
            Post,
            plain(
                "Makes a token for a browser.",
                vec![],
                Some(optional(json, bodies::CLIENT_SECRET)),
                listing(bodies::object()),
            ),
        ),
        (
            "/v1/voices",
            Get,
            plain("The voices, for ElevenLabs' clients.", vec![], None, listing(bodies::object())),
        ),
        (
            "/v1/text-to-speech/{voice}",
            Post,
            plain("Speaks a text, for ElevenLabs' clients.", voice_and_format(), timed(), sound()),
        ),
        ("/v1/text-to-speech/{voice}/stream", Post, plain("The same.", voice_and_format(), timed(), sound())),
        (
            "/v1/text-to-speech/{voice}/with-timestamps",
            Post,
            plain(
                "The same, with times of characters.",
                voice_and_format(),
                timed(),
                listing(bodies::object()),
            ),
        ),
        (
            "/v1/text-to-speech/{voice}/stream/with-timestamps",
            Post,
            plain(
                "The same, a JSON object a line.",
                voice_and_format(),
                timed(),
                vec![("application/x-ndjson", bodies::text())],
            ),
        ),
        (
            "/tts/bytes",
            Post,
            plain("Speaks a text, for Cartesia's clients.", vec![], whole(bodies::CARTESIA), sound()),
        ),
        (
            "/tts/sse",
            Post,
            plain(
                "The same, as events.",
                vec![],
                whole(bodies::CARTESIA),
                vec![("text/event-stream", bodies::object())],
            ),
        ),
    ]
}

fn plain(
    about: &str,
    parameters: Vec<Parameter>,
    body: Option<RequestBody>,
    answers: Vec<(&'static str, RefOr<Schema>)>,
) -> Operation {
    let mut done = ResponseBuilder::new().description("done");
    for (kind, schema) in answers {
        done = done.content(kind, ContentBuilder::new().schema(Some(schema)).build());
    }
    let mut responses = ResponsesBuilder::new().response("200", done);
    for (status, about) in REFUSALS {
        // Endpoints of other services refuse in those services' words, so the shape is left open there.
        let content = ContentBuilder::new().schema(Some(bodies::object())).build();
        responses = responses
            .response(status, ResponseBuilder::new().description(about).content("application/json", content));
    }
    let operation =
        OperationBuilder::new().summary(Some(about)).responses(responses.build()).request_body(body);
    with(parameters, operation.build())
}

/// A voice that was kept can be forgotten.
fn linked(mut operation: Operation) -> Operation {
    if let Some(RefOr::T(done)) = operation.responses.responses.get_mut("200") {
        let forget = Link::builder()
            .operation_ref("#/paths/~1v1~1audio~1voices~1{id}/delete")
            .parameter("id", "$response.body#/id");
        done.links.insert("forget".to_owned(), RefOr::T(forget.build()));
    }
    operation
}

fn with(parameters: Vec<Parameter>, mut operation: Operation) -> Operation {
    let parameters: Vec<_> = parameters.into_iter().map(RefOr::T).collect();
    operation.parameters = Some(parameters).filter(|parameters| !parameters.is_empty());
    operation
}

fn parameter(place: ParameterIn, name: &str, schema: RefOr<Schema>) -> Parameter {
    let required = if place == ParameterIn::Path { Required::True } else { Required::False };
    ParameterBuilder::new().name(name).parameter_in(place).required(required).schema(Some(schema)).build()
}

fn request(kind: &str, body: &str) -> RequestBody {
    let mut body = optional(kind, body);
    body.required = Some(Required::True);
    body
}

fn optional(kind: &str, body: &str) -> RequestBody {
    let content = ContentBuilder::new().schema(Some(Ref::from_schema_name(body))).build();
    RequestBodyBuilder::new().content(kind, content).build()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::config::Config;

    #[test]
    fn the_document_names_every_route_of_the_router_and_no_other() {
        let app = App::new(Config::defaults().expect("valid"), Clock::start()).expect("threads");
        let source = include_str!("../mod.rs");
        let routes = source.split(".route(\"").skip(1).filter_map(|rest| rest.split('"').next());
        let mut routes: Vec<&str> =
            routes.filter(|path| path.starts_with("/v1/") || path.starts_with("/tts/")).collect();
        routes.sort_unstable();
        let document = document(&app);
        assert_eq!(document["openapi"], "3.1.0");
        let mut told: Vec<&str> =
            document["paths"].as_object().expect("paths").keys().map(String::as_str).collect();
        told.sort_unstable();
        assert_eq!(told, routes);
    }
}
