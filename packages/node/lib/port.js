'use strict'

// Brings results of the background thread into the event loop. That thread never waits for the
// loop: it rings, and the loop takes the results when it is free. So leases are renewed while the
// loop is blocked.

const { AsyncResource } = require('node:async_hooks')
// Not those of a browser, which jsdom puts in their place.
const { setInterval } = require('node:timers')
const { build } = require('./errors.js')
const { native } = require('./native.js')

/**
 * @typedef {import('./native.js').Done} Done
 * @typedef {import('./native.js').Failed} Failed
 * @typedef {import('./native.js').Lease} Lease
 * @typedef {(port: import('./native.js').Port) => number} Start
 * @typedef {(done: Done) => void} Waiting
 */

/** The longest time that a timer can wait for. */
const LONG = 2 ** 31 - 1

const port = new native.Port(take)
/** @type {Map<number, Waiting>} */
const waiting = new Map()
/** @type {Map<number, (failed: Failed) => void>} */
const watching = new Map()

// Keeps the process alive while a call waits, and only then: the port itself does not.
const alive = setInterval(() => {}, LONG)
alive.unref()

function take() {
  for (const done of port.take()) {
    const tell = watching.get(done.number)
    if (tell !== undefined) {
      watching.delete(done.number)
      if (done.failure !== undefined) tell(done.failure)
      continue
    }
    const who = forget(done.number)
    if (who === undefined) abandon(done.leases)
    else who(done)
  }
}

/** @param {number} number */
function forget(number) {
  const who = waiting.get(number)
  if (who !== undefined) {
    waiting.delete(number)
    if (waiting.size === 0) alive.unref()
  }
  return who
}

/** @param {Lease[] | undefined} leases What arrived for a caller that no longer waits. */
function abandon(leases = []) {
  for (const lease of leases) lease.abandon()
}

/**
 * Waits for a call. If the signal is aborted, nothing of the call is left.
 *
 * The error is made here, after the wait: its stack then leads to the caller that awaits it.
 *
 * @param {Start} start
 * @param {AbortSignal} [signal]
 * @returns {Promise<Done>}
 */
async function run(start, signal) {
  const done = await (signal === undefined
    ? new Promise((resolve) => wait(start, resolve))
    : unlessAborted(start, signal))
  if (done.failure !== undefined) throw build(done.failure, run)
  return done
}

/**
 * @param {Start} start
 * @param {AbortSignal} signal
 * @returns {Promise<Done>}
 */
function unlessAborted(start, signal) {
  if (signal.aborted) return Promise.reject(signal.reason)
  return new Promise((resolve, reject) => {
    const number = wait(start, (done) => {
      over()
      resolve(done)
    })
    const over = whenAborted(signal, () => {
      forget(number)
      port.cancel(number)
      reject(signal.reason)
    })
  })
}

/** @typedef {{ stops: Set<() => void>, forget(): void }} Calls */

/** @type {WeakMap<AbortSignal, Calls>} What a signal ends. */
const stops = new WeakMap()

/**
 * Calls `stop` when the signal is aborted. Returns a function that prevents this.
 *
 * A signal has one listener of ours, however many calls it ends: Node.js warns of more than a few.
 *
 * @param {AbortSignal} signal
 * @param {() => void} stop
 */
function whenAborted(signal, stop) {
  const calls = stops.get(signal) ?? listen(signal)
  calls.stops.add(stop)
  return () => {
    // Node.js keeps some signals for as long as they have listeners.
    if (calls.stops.delete(stop) && calls.stops.size === 0) calls.forget()
  }
}

/** @param {AbortSignal} signal */
function listen(signal) {
  /** @type {Calls} */
  const calls = {
    stops: new Set(),
    forget() {
      signal.removeEventListener('abort', stopAll)
      stops.delete(signal)
    },
  }
  const stopAll = () => {
    calls.forget()
    for (const stop of calls.stops) stop()
  }
  stops.set(signal, calls)
  signal.addEventListener('abort', stopAll)
  return calls
}

/**
 * @param {Start} start
 * @param {Waiting} who
 */
function wait(start, who) {
  const number = start(port)
  send(false)
  if (waiting.size === 0) alive.ref()
  waiting.set(number, who)
  return number
}

let isFlushing = false

/**
 * Calls that many tasks start in one turn of the loop leave together, after the last task has run.
 *
 * @param {boolean} isLong The call asks no node, but waits for something to happen.
 */
function send(isLong) {
  if (isFlushing) return
  // No other call waits, so nothing else will come in this turn.
  if (waiting.size === 0) return isLong ? port.leave() : port.drive()
  isFlushing = true
  process.nextTick(() => {
    isFlushing = false
    port.flush()
  })
}

/**
 * Calls `tell` when the call fails, as that for a loss does, in the caller's asynchronous context.
 * It does not keep the process alive.
 *
 * @param {Start} start
 * @param {(failed: Failed) => void} tell
 */
function watch(start, tell) {
  watching.set(start(port), AsyncResource.bind(tell))
  send(true)
}

module.exports = { port, run, watch }
