// Does what a test says, line by line, with packages/reference/lockmod.js: see main.rs.

import { openSync, writeSync } from 'node:fs'
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'
import { createClient } from '@redis/client'
import { Attempt, NodeLock, NotAcquired, QuorumLocker } from './lockmod.js'

const urls = process.env.LOCKMOD_NODES.split(',')
const label = process.env.LOCKMOD_LABEL
const say = (value) => console.log(value === null ? 'None' : String(value))

/** Enters and leaves under the lock, and writes so into a file: the fence, and which of the two. */
async function rounds(name, count, file, kinds) {
  const locker = new QuorumLocker(urls, { ttl: 10_000, timeout: 2_000, label })
  const log = openSync(file, 'a')
  for (let i = 0; i < Number(count); i++) {
    const shared = kinds === 'mixed' && i % 3 > 0
    const lease = await locker.acquire(name, { wait: 60_000, shared })
    const who = `${lease.fence} ${label}${shared ? ' reads' : ''}\n`
    writeSync(log, `enter ${who}`)
    lease.check()
    writeSync(log, `leave ${who}`)
    await lease.release()
    // Time for the others, who are in a pause of theirs.
    await sleep(Math.random() * 100)
  }
  await locker.close()
  return 'done'
}

/** Holds the lock until it is lost. */
async function hold(locker, name) {
  await locker.hold(name, { wait: 20_000 }, async (lease) => {
    say(lease.fence)
    await new Promise((resolve) => lease.lost.addEventListener('abort', resolve))
  })
  return 'lost'
}

/** Counts a vote; says what QuorumLocker would do then. */
function vote(count, node, reply) {
  attempt[count](Number(node), reply === 'none' ? null : Number(reply))
  const laggards = attempt.laggards().filter((node) => !raised.has(node))
  if (attempt.isWon()) return `won ${attempt.fence}`
  if (attempt.isLost()) return 'lost'
  if (laggards.length === 0) return 'wait'
  for (const node of laggards) raised.add(node)
  return `raise ${attempt.fence} [${laggards.sort().join(', ')}]`
}

/** The fence, or why there is none. */
async function acquire(name, wait, shared) {
  try {
    lease = await locker.acquire(name, { wait: Number(wait), shared })
    return lease.fence
  } catch (error) {
    if (!(error instanceof NotAcquired)) throw error
    return error.message
  }
}

let locker, lease, node, attempt, raised
const commands = {
  rounds,
  locker: (ttl) => {
    // Patient, for machines that do other things as well.
    const timeout = Math.min(ttl / 4, 5000)
    locker = new QuorumLocker(urls, { ttl: Number(ttl), timeout, label })
    return 'ready'
  },
  acquire: (name, wait) => acquire(name, wait, false),
  'acquire-shared': (name, wait) => acquire(name, wait, true),
  hold: (name) => hold(locker, name),
  attempt: (nodes, bound, kind) => {
    attempt = new Attempt(Number(nodes), Number(bound), kind === 'shared')
    raised = new Set()
    return 'ready'
  },
  acquired: (node, reply) => vote('acquired', node, reply),
  raised: (node, reply) => vote('raised', node, reply),
  renew: () => lease.renew(),
  downgrade: () => lease.downgrade(),
  release: () => lease.release(),
  close: async () => {
    await locker.close()
    return 'closed'
  },
  valid: () => lease.validity() > 0,
  node: async (name, kind) => {
    const client = createClient({ url: urls[0] })
    await client.connect()
    node = new NodeLock(client, name, { ttl: 60_000, label, shared: kind === 'shared' })
    return node.acquire()
  },
  'node-acquire': (wait = '0') => node.acquire({ wait: Number(wait) }),
  'node-renew': () => node.renew(),
  'node-release': () => node.release(),
  'node-valid': () => node.validity() > 0,
}

for await (const line of createInterface({ input: process.stdin })) {
  const [command, ...args] = line.split(' ')
  say(await commands[command](...args))
}
process.exit()
