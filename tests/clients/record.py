"""Stands between a client and a server, and writes what both say on one socket as lines of JSON, and what a client asks over HTTP
as one: the fixtures of gateway/proto/tests/transcripts. Sound is written as its length.

    python record.py ws://127.0.0.1:8080 9000 transcript.jsonl    # then point the client at ws://127.0.0.1:9000

Clients that insist on TLS need `cert.pem key.pem` after it, and find it at wss://localhost:9000.
"""

import asyncio
import json
import ssl
import sys

import aiohttp
from aiohttp import web

KEYS = ("xi-api-key", "x-api-key", "authorization")
SOUND = ("audio", "data")


def line(who: str, text: str) -> str:
    message = json.loads(text)
    # OpenAI's events carry sound where they carry text, too.
    for name in (*SOUND, "delta") if message.get("type") == "response.output_audio.delta" else SOUND:
        if isinstance(message.get(name), str):
            message[name] = len(message[name])
    return json.dumps({who: message}, ensure_ascii=False)


def proxy(target: str, path: str):
    async def ask(request):
        body = await request.read()
        asked = {"method": request.method, "path": str(request.rel_url), "body": json.loads(body) if body else None}
        with open(path, "a") as file:
            file.write(json.dumps(asked, ensure_ascii=False) + "\n")
        passed = {name: value for name, value in request.headers.items() if name.lower() in (*KEYS, "content-type")}
        url = target.replace("ws", "http", 1) + str(request.rel_url)
        async with aiohttp.ClientSession() as session, session.request(request.method, url, data=body, headers=passed) as answer:
            kind = {"content-type": answer.headers["content-type"]}
            return web.Response(status=answer.status, body=await answer.read(), headers=kind)

    async def handle(request):
        if request.headers.get("upgrade", "").lower() != "websocket":
            return await ask(request)
        # Browsers bring their key as a subprotocol, and wait for the other one.
        offered = [name.strip() for name in request.headers.get("sec-websocket-protocol", "").split(",") if name.strip()]
        client = web.WebSocketResponse(protocols=offered[:1])
        await client.prepare(request)
        keys = {name: value for name, value in request.headers.items() if name.lower() in KEYS}
        lines = [json.dumps({"path": str(request.rel_url)})]

        async def pass_on(who, source, sink):
            async for message in source:
                if message.type == aiohttp.WSMsgType.TEXT:
                    lines.append(line(who, message.data))
                    await sink.send_str(message.data)
            await sink.close()

        async with aiohttp.ClientSession() as session, session.ws_connect(
            target + str(request.rel_url), headers=keys, protocols=offered
        ) as server:
            await asyncio.gather(pass_on("client", client, server), pass_on("server", server, client))
        with open(path, "w") as file:
            file.write("\n".join(lines) + "\n")
        return client

    return handle


if __name__ == "__main__":
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", proxy(sys.argv[1], sys.argv[3]))
    tls = None
    if len(sys.argv) > 4:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(*sys.argv[4:6])
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[2]), ssl_context=tls, print=None)
