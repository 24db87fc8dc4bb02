// Starts the binary under test on free ports and stops it again.

import { spawn } from "node:child_process";
import { createServer } from "node:net";

export async function startServer(extra = []) {
  const [port, admin] = [await freePort(), await freePort()];
  const args = ["serve", "--listen", `127.0.0.1:${port}`, "--admin", `127.0.0.1:${admin}`, ...extra];
  const child = spawn(process.env.VOXLANE_BINARY, args, { stdio: ["ignore", "pipe", "pipe"] });
  let log = "";
  child.stdout.on("data", (data) => { log += data; });
  child.stderr.on("data", (data) => { log += data; });
  const deadline = Date.now() + 30_000;
  while (!(await ready(admin))) {
    if (child.exitCode !== null || Date.now() > deadline) throw new Error(`the server did not become ready:\n${log}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  return {
    url: `http://127.0.0.1:${port}`,
    admin: `http://127.0.0.1:${admin}`,
    log: () => log,
    stop: () => new Promise((resolve) => { child.once("exit", resolve); child.kill("SIGTERM"); }),
  };
}

async function ready(port) {
  try {
    return (await fetch(`http://127.0.0.1:${port}/readyz`)).ok;
  } catch {
    return false;
  }
}

function freePort() {
  return new Promise((resolve, reject) => {
    const server = createServer();
    server.once("error", reject);
    server.listen(0, "127.0.0.1", () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });
}
