// One session on `GET /v1/stream`. Keeps contexts apart, drops packets of older epochs, and tells its
// owner what happened by events. Plays nothing itself: see player.js.

import { readPacket, SUBPROTOCOL } from "./wire.js";

/** An error object of the server (docs/protocol.md section 9). */
export class VoxlaneError extends Error {
  constructor(error, context) {
    super(error.message);
    this.name = "VoxlaneError";
    this.code = error.code;
    this.type = error.type;
    this.param = error.param;
    this.retryAfterMs = error.retry_after_ms;
    this.context = context;
  }
}

/**
 * Events (CustomEvent, data in `detail`): `ready`, `opened`, `ack`, `packet`, `chunk`, `cancelled`, `end`,
 * `error` (detail is a VoxlaneError), `goaway`, `close` ({code, reason}).
 */
export class VoxlaneClient extends EventTarget {
  #socket = null;
  #contexts = new Map(); // id -> Context
  #nextContext = 1;
  #pings = new Map(); // t -> resolve

  /** What the server said in `ready`; null before. */
  ready = null;

  /**
   * Connects and waits for `ready`.
   * @param {{url?: string, token?: string, hello?: object}} options
   */
  connect({ url = defaultUrl(), token, hello } = {}) {
    const protocols = token ? [SUBPROTOCOL, `bearer.${token}`] : [SUBPROTOCOL];
    const socket = new WebSocket(url, protocols);
    socket.binaryType = "arraybuffer";
    this.#socket = socket;
    return new Promise((resolve, reject) => {
      socket.onmessage = (event) => {
        if (typeof event.data === "string") this.#onControl(JSON.parse(event.data), resolve, hello);
        else this.#onPacket(event.data);
      };
      socket.onclose = (event) => {
        const detail = { code: event.code, reason: event.reason };
        this.#contexts.clear();
        this.dispatchEvent(new CustomEvent("close", { detail }));
        reject(new VoxlaneError({ code: "closed", message: `the connection closed (${event.code} ${event.reason})` }));
      };
    });
  }

  get connected() {
    return this.#socket !== null && this.#socket.readyState === WebSocket.OPEN;
  }

  /**
   * Opens a context: one utterance stream.
   * @param {object} settings fields of `open` (voice, layout, seed, temperature, ...)
   * @returns {Context}
   */
  open(settings = {}) {
    const context = new Context(this, this.#nextContext++);
    this.#contexts.set(context.id, context);
    this.send({ type: "open", context: context.id, ...settings });
    return context;
  }

  /** Sends one control message. Messages to a closed socket are dropped: `close` has been told. */
  send(message) {
    if (this.connected) this.#socket.send(JSON.stringify(message));
  }

  /** Round trip in milliseconds as this page sees it. */
  ping() {
    const t = performance.now();
    this.send({ type: "ping", t });
    return new Promise((resolve) => this.#pings.set(t, resolve));
  }

  close() {
    this.#socket?.close(1000);
  }

  #onControl(message, onReady, hello) {
    const context = this.#contexts.get(message.context);
    switch (message.type) {
      case "ready":
        this.ready = message;
        if (hello) this.send({ type: "hello", ...hello });
        onReady(message);
        break;
      case "opened":
        if (context) context.audio = message.audio;
        break;
      case "cancelled":
        if (context) context.epoch = message.epoch;
        break;
      case "end":
        if (context && message.epoch === context.epoch) context.ended = true;
        break;
      case "pong": {
        this.#pings.get(message.t)?.(performance.now() - message.t);
        this.#pings.delete(message.t);
        return;
      }
      case "error": {
        const detail = new VoxlaneError(message.error, message.context);
        this.dispatchEvent(new CustomEvent("error", { detail }));
        return;
      }
    }
    const names = { "text.ack": "ack" };
    this.dispatchEvent(new CustomEvent(names[message.type] ?? message.type, { detail: message }));
  }

  #onPacket(buffer) {
    const packet = readPacket(buffer);
    const context = packet && this.#contexts.get(packet.context);
    if (!context || packet.epoch !== context.epoch) return;
    context.received = packet.sequence;
    this.dispatchEvent(new CustomEvent("packet", { detail: packet }));
  }
}

/** One utterance stream: text in, packets out. */
export class Context {
  #client;
  #sequence = 0;

  constructor(client, id) {
    this.#client = client;
    this.id = id;
    /** Newest epoch this side knows; packets of older ones are dropped. */
    this.epoch = 0;
    /** `opened.audio`, once the server has answered. */
    this.audio = null;
    /** Last packet sequence received. */
    this.received = 0;
    this.ended = false;
  }

  append(text) {
    this.#sequence += 1;
    this.#client.send({ type: "text.append", context: this.id, sequence: this.#sequence, text });
  }

  /** Speak what you have. */
  flush() {
    this.#client.send({ type: "text.flush", context: this.id });
  }

  /** No more text follows. */
  end() {
    this.#client.send({ type: "text.end", context: this.id });
  }

  /** Stop now. Silence the player first; `played` is the position audible at the cut (48 kHz samples). */
  cancel(played) {
    this.#client.send({ type: "cancel", context: this.id, epoch: this.epoch, played });
    this.epoch = (this.epoch + 1) & 0xffff;
    this.#sequence = 0;
    this.ended = false;
  }

  /** Reports playback (docs/protocol.md section 6). */
  report(report) {
    this.#client.send({ type: "playback", context: this.id, epoch: this.epoch, sequence: this.received, ...report });
  }
}

function defaultUrl() {
  const scheme = location.protocol === "https:" ? "wss:" : "ws:";
  return `${scheme}//${location.host}/v1/stream`;
}
