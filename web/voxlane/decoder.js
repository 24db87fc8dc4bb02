// Opus packets to 48 kHz samples: WebCodecs where it truly decodes Opus, else the wasm decoder beside
// us. Both give mono Float32Array through `onSamples`, in order, before trimming.

import { WIRE_RATE } from "./wire.js";

/** @returns {Promise<"webcodecs"|"wasm">} */
export async function chooseDecoder() {
  const forced = new URLSearchParams(location.search).get("decoder");
  if (forced === "wasm" || forced === "webcodecs") return forced;
  return (await webCodecsDecodesOpus()) ? "webcodecs" : "wasm";
}

/** @param {"webcodecs"|"wasm"} kind @param {(samples: Float32Array) => void} onSamples */
export async function createDecoder(kind, onSamples) {
  return kind === "webcodecs" ? new WebCodecsDecoder(onSamples) : WasmDecoder.create(onSamples);
}

const CONFIG = { codec: "opus", sampleRate: WIRE_RATE, numberOfChannels: 1 };

// Some browsers have the interface and even say yes, but cannot decode: only a packet tells.
async function webCodecsDecodesOpus() {
  if (typeof AudioDecoder === "undefined") return false;
  try {
    const { supported } = await AudioDecoder.isConfigSupported(CONFIG);
    if (!supported) return false;
    let heard = 0;
    const decoder = new AudioDecoder({ output: (data) => { heard += data.numberOfFrames; data.close(); }, error: () => {} });
    decoder.configure(CONFIG);
    // A 20 ms packet of silence: TOC for wideband SILK mono, then an empty frame (RFC 6716 section 3.1).
    const silence = new Uint8Array([0x48, 0x00, 0x00]);
    decoder.decode(new EncodedAudioChunk({ type: "key", timestamp: 0, data: silence }));
    await decoder.flush();
    decoder.close();
    return heard > 0;
  } catch {
    return false;
  }
}

class WebCodecsDecoder {
  #decoder;
  #onSamples;
  #micros = 0;
  #fresh = false;

  constructor(onSamples) {
    this.#onSamples = onSamples;
    this.reset();
  }

  decode(payload, duration) {
    this.#fresh = false;
    this.#decoder.decode(new EncodedAudioChunk({ type: "key", timestamp: this.#micros, data: payload }));
    this.#micros += Math.round((duration * 1e6) / WIRE_RATE);
  }

  // A new object rather than reset(): output already queued for the old one must not arrive.
  reset() {
    if (this.#fresh) return;
    this.#fresh = true;
    if (this.#decoder && this.#decoder.state !== "closed") this.#decoder.close();
    const decoder = new AudioDecoder({
      output: (data) => {
        const samples = new Float32Array(data.numberOfFrames);
        data.copyTo(samples, { planeIndex: 0, format: "f32-planar" });
        data.close();
        if (decoder === this.#decoder) this.#onSamples(samples);
      },
      error: (error) => console.error("decoder", error),
    });
    decoder.configure(CONFIG);
    this.#decoder = decoder;
    this.#micros = 0;
  }
}

class WasmDecoder {
  #inner;
  #onSamples;
  #waiting = []; // packets that came while a reset was under way
  #resetting = 0;
  #fresh = true;

  static async create(onSamples) {
    await loadScript(new URL("../vendor/opus-decoder.min.js", import.meta.url));
    const { OpusDecoder } = globalThis["opus-decoder"];
    const inner = new OpusDecoder({ channels: 1, sampleRate: WIRE_RATE, preSkip: 0 });
    await inner.ready;
    const decoder = new WasmDecoder();
    decoder.#inner = inner;
    decoder.#onSamples = onSamples;
    return decoder;
  }

  decode(payload) {
    this.#fresh = false;
    if (this.#resetting > 0) {
      this.#waiting.push(payload.slice());
      return;
    }
    const { channelData, samplesDecoded } = this.#inner.decodeFrame(payload);
    this.#onSamples(channelData[0].slice(0, samplesDecoded));
  }

  // The library makes a new wasm instance, which takes a moment; packets wait for it in order.
  reset() {
    this.#waiting = [];
    if (this.#fresh) return;
    this.#fresh = true;
    this.#resetting += 1;
    this.#inner.reset().then(() => {
      this.#resetting -= 1;
      if (this.#resetting > 0) return;
      for (const payload of this.#waiting.splice(0)) this.decode(payload);
    });
  }
}

const loading = new Map();

function loadScript(url) {
  const key = String(url);
  if (!loading.has(key)) {
    loading.set(key, new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = key;
      script.onload = resolve;
      script.onerror = () => reject(new Error(`cannot load ${key}`));
      document.head.append(script);
    }));
  }
  return loading.get(key);
}
