'use strict'

// The native part: calls in, plain values out. One file for each platform.

const { join } = require('node:path')

/**
 * @typedef {import('./options.js').Length} Length
 * @typedef {import('..').NodeInfo} NodeInfo
 * @typedef {import('..').NodeVote} NodeVote
 * @typedef {{ kind: string, text: string, nodes: NodeVote[], waited?: number, attempts?: number,
 *   reason?: string, isRetryable: boolean }} Failed
 * @typedef {{ number: number, failure?: Failed, leases?: Lease[], votes?: NodeVote[],
 *   states?: NodeInfo[] }} Done
 * @typedef {{ flush(): void, drive(): void, leave(): void, take(): Done[],
 *   cancel(number: number): void }} Port
 * @typedef {{ readonly fence: number, readonly name: string, validity(): number,
 *   isExclusive(): boolean, reason(): string | null, loss(): Failed | null,
 *   lost(port: Port): number,
 *   extend(port: Port, ttl?: Length): number, downgrade(port: Port): number,
 *   release(port: Port): number, keep(): void, abandon(): void }} Lease
 * @typedef {{ shown(): string, close(): void,
 *   acquire(port: Port, name: string | Uint8Array, wait?: Length, ttl?: Length, label?: string,
 *     renew?: boolean, maxHold?: Length, shared?: boolean): number,
 *   acquireMany(port: Port, names: (string | Uint8Array)[],
 *     shared: (string | Uint8Array)[], wait?: Length, ttl?: Length, label?: string,
 *     renew?: boolean, maxHold?: Length): number,
 *   info(port: Port, name: string | Uint8Array): number, settle(port: Port): number }} Core
 * @typedef {{ Port: new (ring: () => void) => Port,
 *   open(made: object): Core | Failed, finish(): void,
 *   splitNodes(text: string): string[] }} Native
 */

const binary = join(__dirname, '..', `lockmod.${process.platform}-${process.arch}.node`)

module.exports = {
  binary,
  /** @returns {Native} */
  get native() {
    return require(binary)
  },
}
