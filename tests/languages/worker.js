// Does what a test says, line by line, with the Node.js package: see main.rs.

import { openSync, writeSync } from 'node:fs'
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'
import { LockError, Locker, LostError, NoQuorumError } from 'lockmod'

const urls = process.env.LOCKMOD_NODES.split(',')
const label = process.env.LOCKMOD_LABEL
const say = (value) => console.log(String(value))

/** Whether a quorum did it. */
async function done(call) {
  try {
    await call
    return true
  } catch (error) {
    if (error instanceof LostError || error instanceof NoQuorumError) return false
    throw error
  }
}

/** Enters and leaves under the lock, and writes so into a file: the fence, and which of the two. */
async function rounds(name, count, file, kinds) {
  const locker = new Locker(urls, { ttl: 10_000, timeout: 2_000, label })
  const log = openSync(file, 'a')
  for (let i = 0; i < Number(count); i++) {
    const shared = kinds === 'mixed' && i % 3 > 0
    const guard = await locker.acquire(name, { wait: 60_000, shared })
    const who = `${guard.fence} ${label}${shared ? ' reads' : ''}\n`
    writeSync(log, `enter ${who}`)
    guard.check()
    writeSync(log, `leave ${who}`)
    // While two nodes are down, one that is slow makes it unknown whether a quorum heard.
    await done(guard.release())
    // Time for the others, who are in a pause of theirs.
    await sleep(Math.random() * 100)
  }
  return 'done'
}

/** Holds the lock until it is lost. */
async function hold(name) {
  guard = await locker.acquire(name, { wait: 20_000 })
  say(guard.fence)
  if (!guard.lost.aborted) {
    // What watches the loss does not keep the process alive, but its input does.
    await new Promise((resolve) => guard.lost.addEventListener('abort', resolve))
  }
  return 'lost'
}

/** The fence, or why there is none. */
async function acquire(name, wait, shared) {
  try {
    guard = await locker.acquire(name, { wait: Number(wait), renew: false, shared })
    return guard.fence
  } catch (error) {
    if (!(error instanceof LockError)) throw error
    return error.message
  }
}

let locker, guard
const commands = {
  rounds,
  locker: (ttl) => {
    // Patient, for machines that do other things as well.
    locker = new Locker(urls, { ttl: Number(ttl), timeout: Math.min(ttl / 4, 5000), label })
    return 'ready'
  },
  acquire: (name, wait) => acquire(name, wait, false),
  'acquire-shared': (name, wait) => acquire(name, wait, true),
  hold,
  renew: () => done(guard.extend()),
  downgrade: () => done(guard.downgrade()),
  release: () => done(guard.release()),
  close: async () => {
    await locker.settle()
    return 'closed'
  },
  valid: () => guard.validity > 0,
}

for await (const line of createInterface({ input: process.stdin })) {
  const [command, ...args] = line.split(' ')
  say(await commands[command](...args))
}
process.exit()
