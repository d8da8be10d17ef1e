'use strict'

// Real nodes for the tests: servers of their own, killed when the tests end.

const { createClient } = require('@redis/client')
const { spawn } = require('node:child_process')
const { mkdtempSync, rmSync } = require('node:fs')
const { createServer } = require('node:net')
const { tmpdir } = require('node:os')
const { join } = require('node:path')
const { after, before, beforeEach } = require('node:test')
const { setTimeout: sleep } = require('node:timers/promises')

/** Generous, for busy machines; nothing waits this long when all is well. */
const PATIENCE = 30_000
const SERVER = process.env.LOCKMOD_REDIS_SERVER ?? 'redis-server'

/** Polls until `done` returns something true, and returns that. */
async function until(what, done) {
  const deadline = Date.now() + PATIENCE
  while (Date.now() < deadline) {
    const value = await done()
    if (value) return value
    await sleep(5)
  }
  throw new Error(`timed out waiting until ${what}`)
}

function freePort() {
  return new Promise((resolve) => {
    const server = createServer()
    server.listen(0, '127.0.0.1', () => {
      const { port } = server.address()
      server.close(() => resolve(port))
    })
  })
}

/** A server on a port and in a folder of its own. */
class Node {
  async start({ withModule = true } = {}) {
    this.folder ??= mkdtempSync(join(tmpdir(), 'lockmod-node-'))
    this.port ??= await freePort()
    const command = [SERVER, '--port', String(this.port), '--bind', '127.0.0.1', '--dir', this.folder]
    command.push('--save', '', '--appendonly', 'yes', '--appendfsync', 'always')
    command.push('--enable-debug-command', 'local')
    if (withModule) command.push('--loadmodule', process.env.LOCKMOD_MODULE)
    // The shell kills the server when its input ends, which is when this process does.
    const guarded = '"$@" > /dev/null & server=$!; cat > /dev/null; kill -KILL $server; wait'
    this.process = spawn('sh', ['-c', guarded, 'sh', ...command], { stdio: ['pipe', 'ignore', 'ignore'] })
    // Until the server answers, `until` tries again: for a server that never does, not without end.
    let isStarting = true
    const socket = { reconnectStrategy: () => (isStarting ? false : 50) }
    this.client = createClient({ url: this.url, RESP: 2, disableOfflineQueue: true, socket })
    this.client.on('error', () => {})
    await until('the server answers', async () => {
      if (!this.client.isOpen) await this.client.connect().catch(() => {})
      return this.client.isReady && (await this.client.ping().catch(() => null))
    })
    isStarting = false
    this.pid = Number(/process_id:(\d+)/.exec(await this.client.sendCommand(['INFO', 'server']))[1])
  }

  get url() {
    return `redis://127.0.0.1:${this.port}`
  }

  get isUp() {
    return this.process !== undefined
  }

  run(...command) {
    return this.client.sendCommand(command.map(String))
  }

  async info(name) {
    const fields = await this.run('LOCK.INFO', name)
    const pairs = []
    for (let i = 0; i < fields.length; i += 2) pairs.push([fields[i], fields[i + 1]])
    return Object.fromEntries(pairs)
  }

  pause() {
    process.kill(this.pid, 'SIGSTOP')
  }

  resume() {
    if (this.isUp) process.kill(this.pid, 'SIGCONT')
  }

  async kill() {
    const ended = new Promise((resolve) => this.process.once('close', resolve))
    this.client.destroy()
    this.process.stdin.end()
    await ended
    this.process = undefined
  }

  async remove() {
    if (this.isUp) await this.kill()
    rmSync(this.folder, { recursive: true, force: true })
  }
}

/** Three nodes for the tests of a file: up and empty before each of them. */
function three() {
  const nodes = [new Node(), new Node(), new Node()]
  before(() => Promise.all(nodes.map((node) => node.start())))
  beforeEach(async () => {
    for (const node of nodes) {
      if (!node.isUp) await node.start()
      node.resume()
      await node.run('FLUSHALL')
    }
  })
  after(() => Promise.all(nodes.map((node) => node.remove())))
  return nodes
}

const urls = (nodes) => nodes.map((node) => node.url)

/** Blocks the event loop for `length` milliseconds. */
function block(length) {
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, length)
}

module.exports = { Node, PATIENCE, block, three, until, urls }
