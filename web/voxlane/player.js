// Plays one context at a time and keeps the server's playback clock true: decoder, worklet, reports.

import { chooseDecoder, createDecoder } from "./decoder.js";
import { Kind, WIRE_RATE } from "./wire.js";

const REPORTS_PER_SECOND_MAX = 20;

/** Events: `state` (detail {state, played, buffered, underruns}), `audible` (first sound left the ear). */
export class Player extends EventTarget {
  #audio;
  #node;
  #decoder;
  #context = null;
  #track = 0;
  #trim = 0; // samples of pre-skip still to drop
  #keep = []; // kept durations of packets whose samples have not come back yet
  #lastReport = { at: -Infinity, state: "" };
  #audibleTold = false;

  /** Which decoder is at work: "webcodecs" or "wasm". */
  decoderKind;

  /** @param {{targetMs?: number}} options jitter buffer: audio held before playback starts or restarts */
  constructor({ targetMs = 100 } = {}) {
    super();
    this.targetMs = targetMs;
    this.status = { state: "idle", played: 0, buffered: 0, underruns: 0 };
  }

  /** Call from a user's gesture: browsers start audio only then. */
  async start() {
    if (this.#audio) {
      await this.#audio.resume();
      return;
    }
    this.#audio = new AudioContext({ sampleRate: WIRE_RATE, latencyHint: "interactive" });
    await this.#audio.audioWorklet.addModule(new URL("./worklet.js", import.meta.url));
    this.#node = new AudioWorkletNode(this.#audio, "voxlane-ear", {
      numberOfInputs: 0,
      outputChannelCount: [1],
      processorOptions: { wireRate: WIRE_RATE },
    });
    this.#node.port.onmessage = ({ data }) => this.#onStatus(data);
    this.#node.connect(this.#audio.destination);
    this.decoderKind = await chooseDecoder();
    this.#decoder = await createDecoder(this.decoderKind, (samples) => this.#onSamples(samples));
    await this.#audio.resume();
  }

  /** From here on, packets of `context` are played and its reports sent. What was playing stops. */
  attach(context) {
    this.#context = context;
    this.#beginTrack();
  }

  /** One packet of the attached context; others are ignored. */
  push(packet) {
    if (!this.#context || packet.context !== this.#context.id) return;
    if (packet.start) {
      this.#decoder.reset();
      this.#keep = [];
      this.#trim = packet.timestamp === 0 ? (this.#context.audio?.pre_skip ?? 0) : 0;
    }
    if (packet.kind === Kind.OPUS && packet.payload.length > 0) {
      this.#keep.push({ duration: packet.duration, end: packet.end });
      this.#decoder.decode(packet.payload, packet.duration);
    } else if (packet.kind === Kind.GAP) {
      if (packet.duration > 0) this.#post(new Float32Array(packet.duration));
      if (packet.end) this.#complete();
    }
  }

  /** Silence now. Returns the audible position in wire samples, for `Context.cancel`. */
  stop() {
    const played = this.#audiblePosition(this.status);
    this.#decoder?.reset();
    this.#beginTrack();
    return played;
  }

  pause(paused) {
    this.#node?.port.postMessage({ type: "pause", track: this.#track, paused });
  }

  #beginTrack() {
    this.#track += 1;
    this.#keep = [];
    this.#audibleTold = false;
    this.status = { state: "prebuffer", played: 0, buffered: 0, underruns: 0 };
    const target = Math.round((this.targetMs * WIRE_RATE) / 1000);
    this.#node?.port.postMessage({ type: "clear", track: this.#track, target });
  }

  // The decoder gives back one block a packet, in order: trim the first to its pre-skip, the last to
  // its duration (docs/protocol.md section 5).
  #onSamples(samples) {
    const packet = this.#keep.shift();
    if (!packet) return;
    let kept = samples.subarray(0, Math.min(samples.length, packet.duration));
    const dropped = Math.min(this.#trim, kept.length);
    this.#trim -= dropped;
    kept = kept.subarray(dropped);
    if (kept.length > 0) this.#post(kept.slice());
    if (packet.end) this.#complete();
  }

  #post(samples) {
    this.#node.port.postMessage({ type: "samples", track: this.#track, samples }, [samples.buffer]);
  }

  #complete() {
    this.#node.port.postMessage({ type: "complete", track: this.#track });
  }

  #onStatus(status) {
    if (status.track !== this.#track) return;
    this.status = status;
    this.dispatchEvent(new CustomEvent("state", { detail: status }));
    if (status.audible && !this.#audibleTold) {
      this.#audibleTold = true;
      this.dispatchEvent(new CustomEvent("audible", { detail: { at: performance.now() } }));
    }
    this.#report(status);
  }

  #report(status) {
    const context = this.#context;
    const interval = context?.reportIntervalMs ?? 200;
    const now = performance.now();
    const changed = status.state !== this.#lastReport.state;
    const spacing = now - this.#lastReport.at;
    const due = changed ? spacing >= 1000 / REPORTS_PER_SECOND_MAX : spacing >= interval && status.state === "playing";
    if (!context || !due || context.received === 0) return;
    this.#lastReport = { at: now, state: status.state };
    context.report({
      t: now,
      played: this.#audiblePosition(status),
      buffered: status.buffered,
      state: status.state,
      underruns: status.underruns,
    });
  }

  // The worklet counts what it handed out; the device still holds some of that.
  #audiblePosition(status) {
    const latency = this.#audio?.outputLatency || this.#audio?.baseLatency || 0;
    return Math.max(0, status.played - Math.round(latency * WIRE_RATE));
  }
}
