// Starts the binary under test on free ports and stops it again.

import { spawn } from "node:child_process";
import http from "node:http";
import { connect, createServer } from "node:net";

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

/** Stands before the server at `url` as a proxy does that lets only the answer headers pass that `keeps` names. */
export async function startProxy(url, keeps) {
  const { hostname, port } = new URL(url);
  const proxy = http.createServer((request, answer) => {
    const { method, url: path, headers } = request;
    request.pipe(http.request({ hostname, port, method, path, headers }, (response) => {
      const kept = Object.entries(response.headers).filter(([name]) => keeps(name));
      answer.writeHead(response.statusCode, Object.fromEntries(kept));
      response.pipe(answer);
    }));
  });
  const sockets = new Set();
  proxy.on("upgrade", (request, socket) => {
    const upstream = connect(port, hostname, () => {
      const lines = Object.entries(request.headers).map(([name, value]) => `${name}: ${value}`);
      upstream.write([`${request.method} ${request.url} HTTP/1.1`, ...lines, "", ""].join("\r\n"));
      upstream.pipe(socket).pipe(upstream);
    });
    for (const end of [socket, upstream]) end.on("error", () => {});
    sockets.add(socket);
  });
  const own = await freePort();
  await new Promise((resolve) => { proxy.listen(own, "127.0.0.1", resolve); });
  return {
    url: `http://127.0.0.1:${own}`,
    stop: () => new Promise((resolve) => {
      for (const socket of sockets) socket.destroy();
      proxy.close(resolve);
      proxy.closeAllConnections();
    }),
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
