'use strict'

// Reads from a client of ioredis or node-redis which server it is for, and how to log in there.
//
// What is not understood is refused: a guessed address would be that of an unrelated server, and
// the lock there would protect nothing.

const { OptionError } = require('./errors.js')
const { kind } = require('./options.js')

/** @typedef {{ url: string, prefix: string }} Server Its URL, and the prefix of its keys. */

/** What keeps the address from being known. */
class Unclear extends Error {}

/**
 * The server of a client, or of a URL.
 *
 * @param {object | string} client
 * @param {number} [index] Its place in a list.
 * @returns {Server}
 */
function server(client, index = 0) {
  if (typeof client === 'string') return { url: client, prefix: '' }
  try {
    return read(client)
  } catch (why) {
    if (!(why instanceof Unclear)) throw why
    throw new OptionError(
      `client ${index + 1} (${kind(client)}) does not tell which server it is for, because ` +
        `${why.message}: give a URL` +
        ' (redis://, rediss://, unix://, redis+sentinel:// or redis+cluster://) or a Locker',
    )
  }
}

/**
 * @param {object} client
 * @returns {Server}
 */
function read(client) {
  const options = /** @type {any} */ (client)?.options
  if (typeof options !== 'object' || options === null) {
    throw new Unclear('it has no options for one server')
  }
  if ('rootNodes' in options || ('isCluster' in client && client.isCluster === true)) {
    throw new Unclear('it is for a Cluster')
  }
  if (!isNodeRedis(client) && !isIoredis(client)) {
    throw new Unclear('it is one of neither ioredis nor node-redis')
  }
  if (options.Connector) throw new Unclear('its Connector may connect to anywhere')
  const prefix = options.keyPrefix ?? ''
  if (options.sentinels) return { url: group(options), prefix }
  // node-redis has its address in `socket`, and its URL split into parts.
  const place = { ...options, ...options.socket }
  // As in node-redis, which leaves it out. ioredis has it among its options.
  if (place.host === undefined && isNodeRedis(client)) place.host = 'localhost'
  const { path, tls } = place
  const { user, password } = login(options)
  const database = options.db ?? options.database ?? 0
  if (path) {
    if (tls) throw new Unclear('it uses TLS over a socket of the system')
    const query = parameters({ user, pass: password, db: database || undefined })
    return { url: `unix://${encodeURI(path).replace(/[?#]/g, encodeURIComponent)}${query}`, prefix }
  }
  const scheme = encrypted(tls === true ? place : tls, place.host) ? 'rediss' : 'redis'
  return { url: `${scheme}://${secret(user, password)}${address(place, 6379)}/${database}`, prefix }
}

/** @param {object} client */
function isNodeRedis(client) {
  return 'isOpen' in client && 'sendCommand' in client
}

/** @param {object} client Not a mock, which has the address of a server that it never asks. */
function isIoredis(client) {
  return 'connector' in client && 'sendCommand' in client
}

/**
 * The URL of the master of a group under Sentinel, for a client of ioredis.
 *
 * @param {any} options
 */
function group(options) {
  const { sentinels, name, role } = options
  if (role && role !== 'master') {
    throw new Unclear('it is for a replica, and only the master grants locks')
  }
  if (!name) throw new Unclear('it names no group')
  if (!Array.isArray(sentinels) || sentinels.length === 0) throw new Unclear('it names no Sentinel')
  if (options.natMap) throw new Unclear('its natMap would not be used')
  // As in ioredis, which needs both settings to reach the master over TLS.
  const tls = encrypted(options.enableTLSForSentinelMode && options.tls)
  if (encrypted(options.sentinelTLS) !== tls) {
    throw new Unclear('the master and the Sentinels differ in TLS')
  }
  const places = sentinels.map((sentinel) => address(sentinel, 26_379)).join(',')
  const { user, password } = login(options)
  const { sentinelUsername: sentinel_username, sentinelPassword: sentinel_password } = options
  const scheme = tls ? 'rediss' : 'redis'
  const path = `${encodeURIComponent(name)}/${options.db ?? 0}`
  const query = parameters({ sentinel_username, sentinel_password })
  return `${scheme}+sentinel://${secret(user, password)}${places}/${path}${query}`
}

/** Options of TLS that a URL cannot express. */
const UNUSED = [
  'checkServerIdentity',
  'servername',
  'ciphers',
  'crl',
  'minVersion',
  'maxVersion',
  'secureOptions',
  'secureProtocol',
]

/**
 * Whether these options are for TLS.
 *
 * @param {any} tls
 * @param {string} [host] Whose name the certificate has to have in any case.
 */
function encrypted(tls, host) {
  if (!tls) return false
  if (['ca', 'cert', 'key', 'pfx', 'secureContext'].some((name) => tls[name])) {
    const instead = "in place of the clients' tls"
    throw new OptionError(`give a Locker with \`cacert\`, \`cert\` and \`key\`, ${instead}`)
  }
  if (tls.rejectUnauthorized === false) {
    throw new Unclear('its rejectUnauthorized: false would not be used')
  }
  const unused = UNUSED.find((name) => tls[name] && !(name === 'servername' && tls[name] === host))
  if (unused) throw new Unclear(`its ${unused} would not be used`)
  return true
}

/** @param {any} options */
function login({ username: user, password, credentialsProvider: provider }) {
  // node-redis makes a provider of a user and a password.
  const isOwn = provider && (provider.type !== 'async-credentials-provider' || !(user || password))
  if (isOwn) throw new Unclear('its credentialsProvider may return another login each time')
  // A server that asks for no password takes any from this user, and refuses one without a name.
  return { user: user || (password ? 'default' : undefined), password }
}

/**
 * @param {{ host?: string, port?: number }} place
 * @param {number} usual
 */
function address({ host, port }, usual) {
  if (!host) throw new Unclear('it names no host')
  return `${host.includes(':') ? `[${host}]` : host}:${port ?? usual}`
}

/**
 * @param {string | undefined} user
 * @param {string | undefined} password
 */
function secret(user, password) {
  const name = encodeURIComponent(user ?? '')
  return user || password ? `${name}:${encodeURIComponent(password ?? '')}@` : ''
}

/** @param {Record<string, any>} fields */
function parameters(fields) {
  const given = Object.entries(fields).filter(([, value]) => value)
  const query = given.map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join('&')
  return query && `?${query}`
}

module.exports = { server }
