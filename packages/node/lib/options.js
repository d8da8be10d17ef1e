'use strict'

// Checks arguments before anything is sent: what is wrong, with its value, and what is allowed.

const { inspect, types } = require('node:util')
const { OptionError } = require('./errors.js')
const { native } = require('./native.js')

/**
 * @typedef {import('..').Name} Name
 * @typedef {Record<string, string>} Known The options, and their types.
 */

/**
 * Options whose lengths of time may be texts.
 *
 * @template T
 * @typedef {{ [K in keyof T]: number extends T[K] ? T[K] | string : T[K] }} Checked
 */

/** @type {Known} */
const TERMS = { ttl: 'number', label: 'string', renew: 'boolean', maxHold: 'number' }
/** @type {Known} */
const SETTINGS = {
  ...TERMS,
  wait: 'number',
  timeout: 'number',
  lostMargin: 'number',
  maxTtl: 'number',
  drift: 'number',
  allowEvenNodes: 'boolean',
  cacert: 'string',
  cert: 'string',
  key: 'string',
}
/** @type {Known} Of an acquisition that is tried once. */
const TRIED = { ...TERMS, shared: 'boolean', signal: 'signal' }
/** @type {Known} */
const ASKED = { ...TRIED, wait: 'number' }
/** @type {Known} Of several locks: `list` checks the names. */
const MANY = { ...TERMS, wait: 'number', shared: 'names', signal: 'signal' }

/** @type {Record<string, string>} */
const GIVE = {
  boolean: 'true or false',
  label: 'a string of up to 128 bytes',
  signal: 'an AbortSignal, such as the signal of an AbortController',
  string: 'a string',
}

/**
 * A length of time for the native part: in milliseconds, or in a text what was given instead.
 *
 * @typedef {number | string} Length
 */

/**
 * Refuses misspelt options, which would have no effect, and values of another type, which would
 * mean something else. Returns the options for the native part, which knows the range of a length
 * of time: so it refuses what is no number, too.
 *
 * @template {object} T
 * @param {T} options
 * @param {Known} known
 */
function check(options, known) {
  if (!isOptions(options)) {
    throw new OptionError(`the options are ${typed(options)}: give an object`)
  }
  const given = /** @type {Record<string, unknown>} */ (options)
  /** @type {Record<string, unknown>} */
  const checked = {}
  for (const name of names(given, known)) {
    const value = (checked[name] = given[name])
    const type = Object.hasOwn(known, name) ? known[name] : undefined
    if (type === undefined) {
      if (known === TRIED && name === 'wait') {
        throw new OptionError("there is no option 'wait': tryAcquire does not wait, acquire does")
      }
      const all = Object.keys(known).join(', ')
      throw new OptionError(`there is no option ${shown(name)}: there are ${all}`)
    }
    if (value !== undefined && !isOf(type, value)) {
      if (type !== 'number') {
        const give = GIVE[name] ?? GIVE[type]
        throw new OptionError(`${name} is ${typed(value)}: give ${give}`)
      }
      checked[name] = typed(value)
    } else if (typeof value === 'string' && !isWellFormed(value)) {
      throw new OptionError(`${name} is ${shown(value)}: give a well-formed string`)
    }
  }
  return /** @type {Checked<T>} */ (checked)
}

/**
 * What the object has, inherits, or computes: a loop leaves out the getters of a class.
 *
 * @param {object} options
 * @param {object} known
 */
function names(options, known) {
  const all = new Set(Object.keys(known).filter((name) => name in options))
  for (const name in options) all.add(name)
  return all
}

/**
 * A copy with all of that. A spread would have only what the object has itself.
 *
 * @template {object} T
 * @param {T} options
 * @param {object} known
 * @returns {T}
 */
function flat(options, known) {
  const given = /** @type {Record<string, unknown>} */ (options)
  const copy = [...names(options, known)].map((name) => [name, given[name]])
  return /** @type {T} */ (Object.fromEntries(copy))
}

/**
 * Whether it can be an object with options, also one of another realm, of a class or a module. A
 * Date, a Map or a signal has none that would be seen.
 *
 * @param {unknown} value
 */
function isOptions(value) {
  return ['[object Object]', '[object Module]'].includes(Object.prototype.toString.call(value))
}

/**
 * @param {string} type
 * @param {unknown} value
 */
function isOf(type, value) {
  if (type === 'names') return true
  return type === 'signal' ? isSignal(value) : typeof value === type
}

/**
 * Whether it is an AbortSignal: one of another realm or library is no instance of ours.
 *
 * @param {any} value
 */
function isSignal(value) {
  return (
    typeof value === 'object' &&
    value !== null &&
    typeof value.aborted === 'boolean' &&
    typeof value.addEventListener === 'function' &&
    typeof value.removeEventListener === 'function'
  )
}

/**
 * Whether UTF-8 can encode it: each half of a pair would become the same character.
 *
 * @param {string} text
 */
function isWellFormed(text) {
  return !/\p{Surrogate}/u.test(text)
}

/**
 * The refusal of a method or getter that was used without its object, by its name.
 *
 * @param {object} prototype
 * @param {string | symbol} member
 * @param {string} object
 */
function detached(prototype, member, object) {
  const isGetter = Object.getOwnPropertyDescriptor(prototype, member)?.get !== undefined
  const [name, path] =
    typeof member === 'symbol'
      ? [member.description, `${object}[${member.description}]`]
      : [member, `${object}.${member}`]
  const use = isGetter ? `read it as ${path}` : `call it as ${path}(...), or bind it`
  return new OptionError(`${name} has lost its ${object}: ${use}`)
}

/** @param {unknown} value In a short line. */
function shown(value) {
  const short = { depth: 0, breakLength: Infinity, maxArrayLength: 3, maxStringLength: 40 }
  const text = printable(inspect(value, short))
  return text.length > 80 ? `${text.slice(0, 80)}...` : text
}

/** @param {string} text On one line, as the native part shows what others have written. */
function printable(text) {
  return text.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, (c) => {
    const code = /** @type {number} */ (c.codePointAt(0))
    if (code === 10) return '\\n'
    const hex = code.toString(16)
    return code < 128 ? `\\x${hex.padStart(2, '0')}` : `\\u{${hex}}`
  })
}

/** @param {unknown} value A value of a wrong type in a short line, with that type. */
function typed(value) {
  const isClear = value === null || value === undefined
  return isClear ? String(value) : `${shown(value)}, of type ${typeof value}`
}

/**
 * @param {number} [ttl]
 * @returns {Length | undefined}
 */
function length(ttl) {
  return check({ ttl }, TERMS).ttl
}

/** @param {unknown} name */
function named(name) {
  if (typeof name === 'string') {
    if (!isWellFormed(name)) {
      throw new OptionError(`the name is ${shown(name)}: give a well-formed string, or bytes`)
    }
  } else if (!types.isUint8Array(name)) {
    throw new OptionError(`the name is ${typed(name)}: give a string or a Uint8Array`)
  }
  if (name.length === 0) throw new OptionError('the name is empty: is a variable not set?')
  return name
}

/**
 * @param {unknown} names
 * @param {string} what
 */
function list(names, what) {
  const isList = typeof names === 'object' && names !== null && Symbol.iterator in names
  // The letters of a string would count as names.
  if (!isList || types.isUint8Array(names)) {
    throw new OptionError(`${what} ${typed(names)}: give a list of names`)
  }
  return [.../** @type {Iterable<unknown>} */ (names)].map(named)
}

/** @param {unknown} value What is shown of a value that may have a password in it. */
function kind(value) {
  if (typeof value === 'function') return 'a function'
  return typeof value === 'object' && value !== null
    ? `an object of ${value.constructor?.name ?? 'no class'}`
    : shown(value)
}

/**
 * @param {unknown} nodes
 * @returns {string[]}
 */
function urls(nodes) {
  if (typeof nodes === 'string') {
    return urls(isWellFormed(nodes) ? native.splitNodes(nodes) : [nodes])
  }
  const isList = typeof nodes === 'object' && nodes !== null && Symbol.iterator in nodes
  if (!isList || types.isUint8Array(nodes)) {
    throw new OptionError(`the nodes are ${kind(nodes)}: give a list of URLs, as strings`)
  }
  return [.../** @type {Iterable<unknown>} */ (nodes)].map((url, index) => {
    if (typeof url !== 'string') {
      throw new OptionError(`node ${index + 1} is ${kind(url)}: give its URL, as a string`)
    }
    if (isWellFormed(url)) return url
    throw new OptionError(`node ${index + 1} is broken text: give a text that UTF-8 can encode`)
  })
}

module.exports = {
  ASKED,
  MANY,
  SETTINGS,
  TRIED,
  check,
  detached,
  flat,
  kind,
  length,
  list,
  named,
  printable,
  shown,
  typed,
  urls,
}
