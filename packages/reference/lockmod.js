/**
 * The reference for authors of clients: locks on one node, or over a quorum of independent ones.
 *
 * Read it alongside docs/clients.md, and translate it. A JavaScript program should use the package
 * lockmod instead. It needs node-redis: `npm install @redis/client`.
 *
 *     const locker = new QuorumLocker(['redis://10.0.0.1', 'redis://10.0.0.2', 'redis://10.0.0.3'])
 *     await locker.hold('nightly', { wait: 10_000 }, async (lease) => {
 *       lease.lost.addEventListener('abort', stop)     // the lease is not ours any more
 *       await write(..., lease.fence)                  // the resource refuses a smaller fence
 *     })
 *     await locker.close()
 *
 * It follows docs/design.md, "The quorum protocol". All times are in milliseconds.
 */

import { randomBytes } from 'node:crypto'
import { uptime } from 'node:os'
import { setTimeout as sleep } from 'node:timers/promises'
import { ErrorReply, createClient } from '@redis/client'

const TOKEN_BYTES = 20
/**
 * A waiter asks again after a random part of this, at least half: nodes keep a free lock for the
 * first in line for 100 ms (lockmod.reserve-ms).
 */
const PAUSE = 100
/** Nodes publish there whose turn it is. This client does not listen: asking again is simpler. */
const CHANNEL = 'lockmod:wake:nobody'
/** How long a place in line is kept for a waiter that does not ask again. */
const PLACE_MS = '2000'
/**
 * Other nodes may refuse a fence this far ahead of the time, in microseconds: the vote is left out,
 * as long as the others may be a quorum.
 */
const FAR = 4 * 7 * 86_400 * 1e6
/** These errors say that a node does not carry out the command now. */
const LATER = new RegExp(
  '^(BUSY|CLUSTERDOWN|LOADING|MASTERDOWN|MISCONF|NOREPLICAS|OOM|READONLY|STATEFILE|TRYAGAIN)\\b',
)
/** How many commands may wait for one node that does not answer; more of them fail at once. */
const QUEUE_MAX = 1000

/** The lock was not acquired; the message has what each node answered. */
export class NotAcquired extends Error {}

/** The lease has ended, or was taken away: stop what it protected. */
export class Lost extends Error {}

// A clock that cannot be set. On Linux it keeps running while the machine is suspended, and has a
// resolution of 10 ms: the start of a lease is rounded down, and the present time up.
const isLinux = process.platform === 'linux'
const earliest = () => (isLinux ? uptime() * 1000 : performance.now())
const latest = () => earliest() + (isLinux ? 10 : 0)

/** What is subtracted from a ttl for clocks that run at different rates: 1 % and 2 ms. */
const drift = (ttl) => ttl / 100 + 2

/** What a reader adds to a command: any number of readers hold a lock together, but no writer. */
const mode = (isShared) => (isShared ? ['SHARED'] : [])

/** The command that asks for a lease. */
function grant(name, token, ttl, isShared, label) {
  const command = ['LOCK.ACQUIRE', name, token, String(ttl), ...mode(isShared)]
  return label === undefined ? command : [...command, 'LABEL', label]
}

// ---- one node ----

/**
 * A lock on one node, by a connected client that you have: `new NodeLock(client, 'nightly')`.
 *
 * Every method may throw what node-redis throws; after that it is unknown whether the lock is held:
 * acquire again with the same object, which is harmless, or release.
 */
export class NodeLock {
  #token = randomBytes(TOKEN_BYTES)
  #endsAt = -Infinity

  constructor(client, name, { ttl = 30_000, label, shared = false } = {}) {
    Object.assign(this, { client, name, ttl: Math.ceil(ttl), label, shared })
  }

  /**
   * Returns the fence, or null while another holds the lock. Waits in line for it at the node; the
   * connection is blocked meanwhile.
   */
  async acquire({ wait = 0 } = {}) {
    const command = grant(this.name, this.#token, this.ttl, this.shared, this.label)
    const waiting = [...command, 'WAIT', String(wait)]
    if (wait > 0 && (await this.client.sendCommand(waiting)) === null) return null
    // After a wait, we do not know when the lease began. So we ask again, which is harmless: the
    // lease never becomes shorter.
    const startedAt = earliest()
    const fence = await this.client.sendCommand(command)
    if (fence === null) return null
    this.#endsAt = startedAt + this.ttl - drift(this.ttl)
    if (this.validity() > 0) return fence
    await this.release() // the answer took too long to be of use
    return null
  }

  /** Extends the lease to the ttl from now. False: it is lost, and is never ours again. */
  async renew() {
    const startedAt = earliest()
    if (this.validity() === 0) return false
    const command = ['LOCK.EXTEND', this.name, this.#token, String(this.ttl)]
    const isExtended = (await this.client.sendCommand(command)) === 1 && this.validity() > 0
    this.#endsAt = isExtended ? startedAt + this.ttl - drift(this.ttl) : -Infinity
    return isExtended
  }

  /** True: it was held until now. False: it had ended before, so others may have been here. */
  async release() {
    this.#endsAt = -Infinity
    const reply = await this.client.sendCommand(['LOCK.RELEASE', this.name, this.#token])
    this.#token = randomBytes(TOKEN_BYTES) // another acquisition is another claim
    return reply === 1
  }

  /** How long the lease may still be relied on. */
  validity() {
    return Math.max(0, this.#endsAt - latest())
  }
}

// ---- a quorum of nodes ----

/** Replies in the order in which they come. */
class Inbox {
  #items = []
  #wake = () => {}

  put(item) {
    this.#items.push(item)
    this.#wake()
  }

  /** The next one, or undefined when `deadline` has passed. */
  async next(deadline) {
    if (this.#items.length === 0) {
      await new Promise((resolve) => {
        const timer = setTimeout(resolve, Math.max(0, deadline - latest()))
        this.#wake = () => {
          clearTimeout(timer)
          resolve()
        }
      })
    }
    return this.#items.shift()
  }
}

/** Counts the votes on one acquisition. It knows no sockets and no clock. */
export class Attempt {
  #nodes
  #quorum
  #fences = new Map() // by node: the fence that it stores for this token
  #out = new Set() // nodes that refused, did not answer, or cannot store our fence
  #isFixed = false // a quorum has granted: the fence is the largest of theirs
  #isShared
  #bound // above it a fence is left out, while the others may be a quorum
  #far = new Map() // by node: the fences that are left out
  fence = 0

  constructor(nodes, bound = Infinity, isShared = false) {
    this.#nodes = nodes
    this.#isShared = isShared
    this.#quorum = Math.floor(nodes / 2) + 1
    this.#bound = bound
  }

  /** A node's answer to LOCK.ACQUIRE; anything but a number is no grant. */
  acquired(node, reply) {
    if (typeof reply !== 'number') this.#out.add(node)
    else if (!this.#isFixed && reply > this.#bound) this.#far.set(node, reply)
    else this.#grant(node, reply)
    if (this.#isFixed || this.#far.size === 0 || !this.isLost()) return
    // Without them there is no quorum: perhaps it is our clock that is wrong.
    const far = [...this.#far].sort(([, one], [, other]) => other - one)
    this.#far.clear()
    this.#bound = Infinity
    for (const grant of far) this.#grant(...grant)
  }

  #grant(node, fence) {
    // A larger fence once ours is fixed: that node may have granted ours to another before.
    if (this.#isFixed && fence > this.fence) {
      this.#out.add(node)
      return
    }
    this.#fences.set(node, fence)
    if (this.#isFixed) return
    this.fence = Math.max(this.fence, fence)
    this.#isFixed = this.#fences.size >= this.#quorum
  }

  /** A node's answer to LOCK.FENCE: it counts if it is exactly our fence. */
  raised(node, reply) {
    // A reader's node may have more: another reader has raised it, because no writer was granted
    // the lock while we hold it.
    const isStored = reply === this.fence || (this.#isShared && reply > this.fence)
    if (isStored) this.#fences.set(node, this.fence)
    else this.#out.add(node)
  }

  /** The nodes that granted a smaller fence than ours, once a quorum has granted. */
  laggards() {
    const nodes = [...this.#fences.keys()]
    return this.#isFixed ? nodes.filter((node) => this.#fences.get(node) < this.fence) : []
  }

  isWon() {
    const stores = ([node, fence]) => fence === this.fence && !this.#out.has(node)
    return this.#isFixed && [...this.#fences].filter(stores).length >= this.#quorum
  }

  isLost() {
    return this.#nodes - this.#out.size - this.#far.size < this.#quorum
  }
}

/**
 * Locks over several independent nodes: the client that holds the lease on a quorum holds the lock.
 *
 * `timeout` is how long to wait for one node's answer, much shorter than the ttl. Each node has one
 * connection; node-redis keeps the order of commands, so that a release never overtakes the acquire
 * that it undoes.
 */
export class QuorumLocker {
  constructor(urls, { ttl = 30_000, timeout, label } = {}) {
    this.ttl = Math.ceil(ttl)
    this.label = label
    this.timeout = timeout ?? Math.min(Math.max(ttl / 20, 50), 500, ttl / 4)
    this.quorum = Math.floor(urls.length / 2) + 1
    this.nodes = urls.map((url) => {
      const client = createClient({ url, commandsQueueMaxLength: QUEUE_MAX })
      client.on('error', () => {}) // a node that is down has no vote; it is connected to again
      client.connect().catch(() => {})
      return client
    })
  }

  /** Waits until releases are answered, but not for a node that hangs. */
  async close() {
    const closed = this.nodes.filter((node) => node.isReady).map((node) => node.close())
    const late = new AbortController()
    const patience = sleep(this.timeout, null, { signal: late.signal }).catch(() => {})
    await Promise.race([Promise.allSettled(closed), patience])
    late.abort()
    for (const node of this.nodes.filter((node) => node.isOpen)) node.destroy()
  }

  /**
   * Returns a Lease. While another holds the lock, it stands in line and asks repeatedly. With
   * `shared` the lease is a reader's.
   *
   * @throws {NotAcquired} when `wait` is over
   */
  async acquire(name, { wait = 0, shared = false } = {}) {
    const deadline = latest() + wait
    // The same place in line for all attempts and at all nodes: first come, first served.
    const ticket = `${Date.now()}-${randomBytes(8).toString('hex')}`
    for (;;) {
      const isLast = latest() >= deadline // it leaves the line
      const place = ['QUEUE', isLast ? '0' : PLACE_MS, 'TICKET', ticket, 'NOTIFY', CHANNEL]
      try {
        return await this.#attempt(name, shared, wait > 0 ? place : [])
      } catch (error) {
        if (!(error instanceof NotAcquired) || isLast) throw error
        // Random, so that clients that lost to each other do not collide again.
        const pause = PAUSE / 2 + (Math.random() * PAUSE) / 2
        await sleep(Math.max(0, Math.min(pause, deadline - latest())))
      }
    }
  }

  /** Acquires, renews at a third of the ttl while `work(lease)` runs, and releases at the end. */
  async hold(name, options = {}, work) {
    const lease = await this.acquire(name, options)
    const done = new AbortController()
    const kept = this.#keep(lease, done.signal)
    try {
      return await work(lease)
    } finally {
      done.abort()
      await kept
      await lease.release()
    }
  }

  async #keep(lease, done) {
    let pause = this.ttl / 3
    while (lease.validity() > 0) {
      await sleep(Math.min(pause, lease.validity()), null, { signal: done }).catch(() => {})
      if (done.aborted) return
      // A failed renewal takes nothing away: it is tried again soon.
      pause = (await lease.renew()) ? this.ttl / 3 : this.ttl / 12
    }
    lease.lose()
  }

  async #attempt(name, isShared, place) {
    const token = randomBytes(TOKEN_BYTES)
    const attempt = new Attempt(this.nodes.length, Date.now() * 1000 + FAR, isShared)
    const inbox = new Inbox()
    const votes = this.nodes.map(() => 'no answer')
    const over = new AbortController()
    const startedAt = earliest()
    const validity = () => this.ttl - (latest() - startedAt) - drift(this.ttl)
    const ask = (node, count, command) =>
      this.send(node, command, over.signal).then((reply) => inbox.put({ node, count, reply }))

    const acquire = [...grant(name, token, this.ttl, isShared, this.label), ...place]
    this.nodes.forEach((_, node) => ask(node, 'acquired', acquire))
    const raised = new Set()
    let deadline = latest() + this.timeout
    while (!attempt.isWon() && !attempt.isLost() && validity() > 0) {
      const answer = await inbox.next(deadline)
      if (answer === undefined) break // nodes that have not answered by now have no vote
      const { node, count, reply } = answer
      votes[node] = reply instanceof Error ? reply.message : reply
      attempt[count](node, reply)
      const laggards = attempt.laggards().filter((node) => !raised.has(node))
      if (laggards.length === 0 || attempt.isWon()) continue
      if (raised.size === 0) deadline = latest() + this.timeout
      for (const node of laggards) {
        raised.add(node)
        ask(node, 'raised', ['LOCK.FENCE', name, token, String(attempt.fence)])
      }
    }
    over.abort() // what has not left by now is withdrawn
    // Both are checked after the raise, because it took time.
    if (attempt.isWon() && validity() > 0) {
      // So that the next acquisition needs one round trip.
      for (const node of attempt.laggards().filter((node) => !raised.has(node)))
        this.send(node, ['LOCK.FENCE', name, token, String(attempt.fence)])
      const endsAt = startedAt + this.ttl - drift(this.ttl)
      return new Lease(this, name, token, attempt.fence, isShared, endsAt)
    }
    // Released on all nodes, including those that did not answer, on the same connections. A place
    // in line is kept in the mode that was asked for.
    const release = ['LOCK.RELEASE', name, token]
    if (place.length > 0) release.push(...mode(isShared), ...place)
    this.nodes.forEach((_, node) => this.owe(node, release))
    const said = votes.map((vote, node) => `${node + 1}: ${vote}`).join(', ')
    throw new NotAcquired(`lock '${name}': ${said}`)
  }

  /** Returns the reply, or the error as a value. A command not sent within a ttl is withdrawn. */
  send(node, command, signal = AbortSignal.timeout(this.ttl)) {
    return this.nodes[node].sendCommand(command, { abortSignal: signal }).catch((error) => error)
  }

  /**
   * Repeats a release until it is answered, even over a new connection, or the lease has ended. A
   * node that does not serve at present is asked again.
   */
  async owe(node, command) {
    const ended = AbortSignal.timeout(this.ttl)
    for (;;) {
      const reply = await this.send(node, command, ended)
      const isLater = reply instanceof ErrorReply && LATER.test(reply.message)
      const isAnswered = !(reply instanceof Error) || (reply instanceof ErrorReply && !isLater)
      if (isAnswered || ended.aborted || !this.nodes[node].isOpen) return reply
      if (isLater) await sleep(PAUSE)
    }
  }

  /** Sends to all nodes. Returns whether a quorum answered `expected`, and the replies by node. */
  async count(expected, command, send = this.send) {
    const inbox = new Inbox()
    const replies = new Map()
    const deadline = latest() + this.timeout
    this.nodes.forEach((_, node) =>
      send.call(this, node, command).then((reply) => inbox.put([node, reply])),
    )
    let yes = 0
    while (replies.size - yes <= this.nodes.length - this.quorum) {
      const answer = await inbox.next(deadline)
      if (answer === undefined) break
      replies.set(...answer)
      if (answer[1] === expected) yes += 1
      if (yes >= this.quorum) return { isConfirmed: true, replies }
    }
    return { isConfirmed: false, replies }
  }
}

/** A lock that is held. Its fence rises with every grant: pass it to what the lock protects. */
export class Lease {
  #locker
  #token
  #isShared
  #endsAt
  #lost = new AbortController()

  constructor(locker, name, token, fence, isShared, endsAt) {
    this.name = name
    this.fence = fence
    this.#locker = locker
    this.#token = token
    this.#isShared = isShared
    this.#endsAt = endsAt
  }

  /** An AbortSignal, for a lease that is held by `hold`: aborted when the lease is lost. */
  get lost() {
    return this.#lost.signal
  }

  /** How long the lease may still be relied on; 0 from its end on. */
  validity() {
    return Math.max(0, this.#endsAt - latest())
  }

  /** Throws Lost if the lease may no longer be relied on. */
  check() {
    if (this.validity() === 0) throw new Lost(`lock '${this.name}' with fence ${this.fence}`)
  }

  /** Extends on all nodes. False: not now; what was valid stays valid until it ends. */
  async renew() {
    const { ttl, quorum } = this.#locker
    const startedAt = earliest()
    // A holder whose validity has ended is done: another may hold the lock by now.
    if (this.validity() === 0) return false
    const isShared = this.#isShared
    const extend = ['LOCK.EXTEND', this.name, this.#token, String(ttl), ...mode(isShared)]
    const { isConfirmed, replies } = await this.#locker.count(1, extend)
    // An extension that was sent as a writer does not count for a reader.
    if (this.validity() === 0 || isShared !== this.#isShared) return false
    if (isConfirmed) {
      this.#endsAt = Math.max(this.#endsAt, startedAt + ttl - drift(ttl))
      // Restores the lease on nodes that forgot it, while a quorum confirms it.
      for (const [node, reply] of replies)
        if (reply === null || String(reply).includes('QUARANTINE'))
          this.#locker.send(node, [...extend, 'FENCE', String(this.fence), 'REPAIR'])
      return true
    }
    const notOurs = [...replies.values()].filter((reply) => reply === 0 || reply === null)
    if (notOurs.length >= quorum) this.lose() // removed by force: a quorum knows nothing of us
    return false
  }

  /**
   * Makes a writer a reader. False: some nodes may not have received it, and let readers in after
   * the next extension. There is no upgrade.
   */
  downgrade() {
    // Before anything is sent: the first node that receives it lets others in.
    this.#isShared = true
    return this.renew()
  }

  /** From now on the lease is not relied on. */
  lose() {
    this.#endsAt = -Infinity
    this.#lost.abort(new Lost(`lock '${this.name}' with fence ${this.fence}`))
  }

  /** Releases the lease on all nodes. False: no quorum confirmed that it was held. */
  async release() {
    this.#endsAt = -Infinity
    const release = ['LOCK.RELEASE', this.name, this.#token]
    return (await this.#locker.count(1, release, this.#locker.owe)).isConfirmed
  }
}
