// The native wire of docs/protocol.md: the subprotocol, the binary header, and little else.

export const SUBPROTOCOL = "voxlane.v1";

/** Samples a second of every position on the wire. */
export const WIRE_RATE = 48000;

const HEADER_BYTES = 16;

export const Kind = Object.freeze({ OPUS: 0, PCM: 1, GAP: 2 });
export const Flag = Object.freeze({ START: 1, END: 2, DTX: 4 });

/**
 * Reads a binary message.
 * @param {ArrayBuffer} buffer
 * @returns {{kind:number, start:boolean, end:boolean, context:number, sequence:number, timestamp:number,
 *            duration:number, epoch:number, payload:Uint8Array} | null} null when it is not a header of ours
 */
export function readPacket(buffer) {
  if (buffer.byteLength < HEADER_BYTES) return null;
  const view = new DataView(buffer);
  const first = view.getUint8(0);
  if (first >> 4 !== 1) return null;
  const flags = view.getUint8(1);
  return {
    kind: first & 15,
    start: (flags & Flag.START) !== 0,
    end: (flags & Flag.END) !== 0,
    context: view.getUint16(2),
    sequence: view.getUint32(4),
    timestamp: view.getUint32(8),
    duration: view.getUint16(12),
    epoch: view.getUint16(14),
    payload: new Uint8Array(buffer, HEADER_BYTES),
  };
}
