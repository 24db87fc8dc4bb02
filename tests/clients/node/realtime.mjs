// Speaks through one of OpenAI's SDKs for JavaScript and prints what came as one line of JSON.
// node realtime.mjs CLIENT URL KEY MODEL VOICE TEXT LONG    # an empty LONG: one turn, as transcripts have it
import OpenAI from 'openai';
import { OpenAIRealtimeWS } from 'openai/realtime/ws';
import { OpenAIRealtimeWebSocket } from 'openai/realtime/websocket';
import * as agents from '@openai/agents-realtime';
import WebSocket from 'ws';

const [client, url, key, model, voice, text, long] = process.argv.slice(2);
// A pipe takes its time: the process ends when everything is through.
const out = (value) => process.stdout.write(JSON.stringify(value) + '\n', () => process.exit(0));
// Each client wraps what it was told once or twice.
const told = (error) => (error?.error ? told(error.error) : String(error?.code ?? error?.message ?? error));
const fail = (error) => out({ error: told(error) });
const failed = (response) => response.status === 'failed' && fail({ error: response.status_details.error });
setTimeout(() => fail('timeout'), 60_000).unref();
process.on('unhandledRejection', fail);

/** The socket classes of the SDK: both speak, one as a server does and one as a browser does. */
async function sdk(make) {
  const socket = await make();
  const events = [];
  const pcm = [];
  let turn = 0;
  let item;
  socket.on('event', (event) => events.push(event));
  socket.on('error', fail);
  socket.on('response.output_audio.delta', ({ delta, item_id }) => {
    if (turn === 0) pcm.push(Buffer.from(delta, 'base64'));
    if (turn === 1 && item !== item_id) {
      item = item_id;
      setTimeout(() => socket.send({ type: 'conversation.item.truncate', item_id, content_index: 0, audio_end_ms: 400 }), 500);
    }
  });
  const say = (words) => {
    const content = [{ type: 'input_text', text: words }];
    socket.send({ type: 'conversation.item.create', item: { type: 'message', role: 'user', content } });
    socket.send({ type: 'response.create' });
  };
  socket.on('session.created', () => {
    socket.send({ type: 'session.update', session: { type: 'realtime', audio: { output: { voice } } } });
    say(text);
  });
  socket.on('response.done', ({ response }) => {
    if (failed(response)) return;
    if (turn++ === 0 && long) return say(long);
    out({ pcm: Buffer.concat(pcm).toString('base64'), interrupted: response.status, events });
  });
}

async function agent() {
  const transport = new agents.OpenAIRealtimeWebSocket({ url: url.replace('https', 'wss') + '/realtime?model=' + model });
  const session = new agents.RealtimeSession(new agents.RealtimeAgent({ name: 'speaker', voice }), { transport, model });
  const events = [];
  const pcm = [];
  let turn = 0;
  session.on('error', fail);
  session.on('transport_event', (event) => events.push(event));
  session.on('audio', ({ data }) => {
    if (turn === 0) pcm.push(Buffer.from(data));
    else if (turn === 1) {
      turn = 2;
      setTimeout(() => session.interrupt(), 500);
    }
  });
  session.transport.on('turn_done', () => {
    if (failed(events.findLast((event) => event.type === 'response.done').response)) return;
    if (turn === 0) {
      turn = 1;
      return session.sendMessage(long);
    }
    const last = events.findLast((event) => event.type === 'response.done');
    out({ pcm: Buffer.concat(pcm).toString('base64'), interrupted: last.response.status, events });
  });
  await session.connect({ apiKey: key });
  session.sendMessage(text);
}

const openai = new OpenAI({ apiKey: key, baseURL: url, dangerouslyAllowBrowser: true });
if (client === 'server') await sdk(async () => OpenAIRealtimeWS.create(openai, { model }));
if (client === 'browser') {
  globalThis.WebSocket = WebSocket;
  await sdk(async () => OpenAIRealtimeWebSocket.create(openai, { model, dangerouslyAllowBrowser: true }));
}
if (client === 'agents') await agent();
