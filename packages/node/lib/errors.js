'use strict'

// The errors: one class for each cause, whichever operation failed. They are described in
// index.d.ts.

/** @typedef {import('./native.js').Failed} Failed */
/** @typedef {import('..').NodeVote} NodeVote */

class LockError extends Error {
  /** @type {ReadonlyArray<NodeVote>} */
  nodes = []
  /** @type {number | undefined} */
  waited
  /** @type {number | undefined} */
  attempts
  isRetryable = false

  get name() {
    return this.constructor.name
  }
}

class HeldError extends LockError {
  isRetryable = true

  get label() {
    const labels = this.nodes.flatMap((vote) => vote.label ?? [])
    const count = (/** @type {string} */ label) => labels.filter((other) => other === label).length
    return labels.sort((one, other) => count(other) - count(one))[0]
  }

  get left() {
    return largest(this.nodes.map((vote) => vote.left))
  }

  get heldFor() {
    return largest(this.nodes.map((vote) => vote.heldFor))
  }
}

/** @param {(number | undefined)[]} values */
function largest(values) {
  const known = values.filter((value) => value !== undefined)
  return known.length === 0 ? undefined : Math.max(.../** @type {number[]} */ (known))
}

class NoQuorumError extends LockError {
  isRetryable = true
}

class RefusedError extends LockError {}

class TooLateError extends LockError {
  isRetryable = true
}

class LostError extends LockError {
  reason = 'expired'
}

class OptionError extends LockError {}

/** @type {Record<string, typeof LockError>} */
const classes = {
  held: HeldError,
  no_quorum: NoQuorumError,
  refused: RefusedError,
  too_late: TooLateError,
  lost: LostError,
  option: OptionError,
}

/**
 * The error that the native part describes. Its stack begins with the caller of `above`.
 *
 * @param {Failed} failed
 * @param {Function} [above]
 */
function build(failed, above = build) {
  const error = new (classes[failed.kind] ?? LockError)(failed.text)
  Error.captureStackTrace(error, above)
  error.nodes = failed.nodes
  error.isRetryable = failed.isRetryable
  error.waited = failed.waited
  error.attempts = failed.attempts
  if (error instanceof LostError && failed.reason) error.reason = failed.reason
  return error
}

module.exports = {
  HeldError,
  LockError,
  LostError,
  NoQuorumError,
  OptionError,
  RefusedError,
  TooLateError,
  build,
}
