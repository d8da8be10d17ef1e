// Does what a test says, line by line, with examples/node/lockmod.js: see main.rs.

import { openSync, writeSync } from 'node:fs'
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'
import { createClient } from '@redis/client'
import { NodeLock, NotAcquired, QuorumLocker } from './lockmod.js'

const urls = process.env.LOCKMOD_NODES.split(',')
const label = process.env.LOCKMOD_LABEL
const say = (value) => console.log(value === null ? 'None' : String(value))

/** Enters and leaves under the lock, and writes so into a file: the fence, and which of the two. */
async function rounds(name, count, file) {
  const locker = new QuorumLocker(urls, { ttl: 10_000, label })
  const log = openSync(file, 'a')
  for (let i = 0; i < Number(count); i++) {
    const lease = await locker.acquire(name, { wait: 60_000 })
    writeSync(log, `enter ${lease.fence} ${label}\n`)
    lease.check()
    writeSync(log, `leave ${lease.fence} ${label}\n`)
    await lease.release()
    // Time for the others, who are in a pause of theirs.
    await sleep(Math.random() * 100)
  }
  await locker.close()
  return 'done'
}

/** Holds the lock until it is lost. */
async function hold(locker, name) {
  await locker.hold(name, { wait: 10_000 }, async (lease) => {
    say(lease.fence)
    await new Promise((resolve) => lease.lost.addEventListener('abort', resolve))
  })
  return 'lost'
}

let locker, lease, node
const commands = {
  rounds,
  locker: (ttl) => {
    locker = new QuorumLocker(urls, { ttl: Number(ttl), label })
    return 'ready'
  },
  acquire: async (name, wait) => {
    try {
      lease = await locker.acquire(name, { wait: Number(wait) })
      return lease.fence
    } catch (error) {
      if (!(error instanceof NotAcquired)) throw error
      return error.message
    }
  },
  hold: (name) => hold(locker, name),
  renew: () => lease.renew(),
  release: () => lease.release(),
  valid: () => lease.validity() > 0,
  node: async (name) => {
    const client = createClient({ url: urls[0] })
    await client.connect()
    node = new NodeLock(client, name, { ttl: 60_000, label })
    return node.acquire()
  },
  'node-acquire': () => node.acquire(),
  'node-renew': () => node.renew(),
  'node-release': () => node.release(),
  'node-valid': () => node.validity() > 0,
}

for await (const line of createInterface({ input: process.stdin })) {
  const [command, ...args] = line.split(' ')
  say(await commands[command](...args))
}
process.exit()
