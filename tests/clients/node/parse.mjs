// Reads events of OpenAI Realtime, one a line, with the schemas of the agents SDK, and prints what it does not take.
import { readFileSync } from 'node:fs';
// The package exports no schema: the file that has them lies beside what it exports.
import { realtimeServerEventSchema } from './node_modules/@openai/agents-realtime/dist/openaiRealtimeEvents.mjs';

const known = new Set(realtimeServerEventSchema.options.map((option) => option.shape.type.value));
const events = readFileSync(0, 'utf8').split('\n').map((line) => JSON.parse(line));
const refused = [];
const unknown = new Set();
for (const event of events) {
  const parsed = realtimeServerEventSchema.safeParse(event);
  if (!known.has(event.type)) unknown.add(event.type);
  else if (!parsed.success) refused.push({ event, issues: parsed.error.issues });
}
console.log(JSON.stringify({ read: events.length, refused, unknown: [...unknown] }));
