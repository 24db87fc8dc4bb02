// The ear: a bounded queue of samples on the audio thread. It hands samples out one render quantum at
// a time, waits for a target before it starts and after it ran dry, fades so that no edge clicks, and
// tells the page how far it is. Samples of silence handed out while dry are never counted as played.

const REPORT_QUANTA = 18; // about 48 ms at 48 kHz
const FADE_SECONDS = 0.005;
const QUEUE_SECONDS_MAX = 30;

class EarProcessor extends AudioWorkletProcessor {
  constructor({ processorOptions }) {
    super();
    this.step = processorOptions.wireRate / sampleRate; // wire samples per output sample
    this.wireRate = processorOptions.wireRate;
    this.queueMax = QUEUE_SECONDS_MAX * this.wireRate;
    this.fadeStep = 1 / (FADE_SECONDS * sampleRate);
    this.clear(0, 0);
    this.port.onmessage = ({ data }) => this.onMessage(data);
  }

  clear(track, target) {
    this.track = track;
    this.target = target; // wire samples to hold before starting
    this.queue = [];
    this.head = 0; // position within queue[0], may be fractional
    this.buffered = 0;
    this.played = 0;
    this.underruns = 0;
    this.complete = false;
    this.paused = false;
    this.state = "prebuffer";
    this.gain = 0;
    this.last = 0;
    this.quanta = 0;
    this.audible = false; // the first sample above -50 dBFS has been handed out
  }

  onMessage(message) {
    if (message.type === "clear") {
      this.clear(message.track, message.target);
      return;
    }
    if (message.track !== this.track) return;
    if (message.type === "samples" && this.buffered < this.queueMax) {
      this.queue.push(message.samples);
      this.buffered += message.samples.length;
    } else if (message.type === "complete") {
      this.complete = true;
    } else if (message.type === "pause") {
      this.paused = message.paused;
    }
  }

  process(_inputs, [[channel]]) {
    const before = this.state;
    this.decide();
    for (let i = 0; i < channel.length; i += 1) channel[i] = this.nextSample();
    this.quanta += 1;
    if (this.state !== before || this.quanta >= REPORT_QUANTA) this.report();
    return true;
  }

  decide() {
    if (this.state === "ended") return;
    if (this.paused) {
      this.state = "paused";
    } else if (this.state === "paused") {
      this.state = this.played > 0 ? "playing" : "prebuffer";
    }
    const waiting = this.state === "prebuffer" || this.state === "starved";
    if (waiting && this.buffered > 0 && (this.complete || this.buffered >= this.target)) this.state = "playing";
    if (this.complete && this.buffered < 1) this.state = "ended";
  }

  nextSample() {
    const playing = this.state === "playing" && this.buffered >= 1;
    if (playing) {
      this.last = this.take();
      this.gain = Math.min(1, this.gain + this.fadeStep);
    } else {
      if (this.state === "playing") {
        this.state = this.complete ? "ended" : "starved";
        if (!this.complete) this.underruns += 1;
      }
      this.gain = Math.max(0, this.gain - this.fadeStep);
    }
    return this.last * this.gain;
  }

  // Linear interpolation between neighbours; exact when the rates are equal.
  take() {
    const block = this.queue[0];
    const index = Math.floor(this.head);
    const fraction = this.head - index;
    const next = index + 1 < block.length ? block[index + 1] : (this.queue[1]?.[0] ?? block[index]);
    const sample = block[index] + fraction * (next - block[index]);
    const advance = Math.min(this.step, this.buffered);
    this.head += advance;
    this.buffered -= advance;
    this.played += advance;
    while (this.queue.length > 0 && this.head >= this.queue[0].length) {
      this.head -= this.queue.shift().length;
    }
    if (!this.audible && Math.abs(sample) > 0.00316) {
      this.audible = true;
      this.report();
    }
    return sample;
  }

  report() {
    this.quanta = 0;
    this.port.postMessage({
      track: this.track,
      state: this.state,
      played: Math.floor(this.played),
      buffered: Math.max(0, Math.floor(this.buffered)),
      underruns: this.underruns,
      audible: this.audible,
    });
  }
}

registerProcessor("voxlane-ear", EarProcessor);
