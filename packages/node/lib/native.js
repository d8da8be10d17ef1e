'use strict'

// The native part: calls in, plain values out. One file for each platform.

const { join } = require('node:path')

/**
 * @typedef {{ node: string, master?: string, vote: string, text: string, fence?: number,
 *   label?: string, left?: number, heldFor?: number }} Vote
 * @typedef {{ kind: string, text: string, nodes: Vote[], waited?: number, attempts?: number,
 *   reason?: string, isRetryable: boolean }} Failed
 * @typedef {{ vote?: Vote, node: string, state: string, fence: number, label?: string,
 *   left?: number, heldFor?: number, waiters: number, readers: number, readerLabels: string[],
 *   waitingReaders: number, firstWaiting?: number }} State
 * @typedef {{ number: number, failure?: Failed, leases?: Lease[], votes?: Vote[],
 *   states?: State[] }} Done
 * @typedef {{ flush(): void, take(): Done[],
 *   cancel(number: number): void }} Port
 * @typedef {{ readonly fence: number, readonly name: string, validity(): number,
 *   isExclusive(): boolean, reason(): string | null, loss(): Failed | null,
 *   lost(port: Port): number,
 *   extend(port: Port, ttl?: number): number, downgrade(port: Port): number,
 *   release(port: Port): number, keep(): void, abandon(): void }} Lease
 * @typedef {{ shown(): string,
 *   acquire(port: Port, name: string | Uint8Array, wait?: number, ttl?: number, label?: string,
 *     renew?: boolean, maxHold?: number, shared?: boolean): number,
 *   acquireMany(port: Port, names: (string | Uint8Array)[],
 *     shared: (string | Uint8Array)[], wait?: number, ttl?: number, label?: string,
 *     renew?: boolean, maxHold?: number): number,
 *   info(port: Port, name: string | Uint8Array): number, settle(port: Port): number }} Core
 * @typedef {{ Port: new (ring: () => void) => Port, Lease: Function, open(made: object): Core | Failed,
 *   finish(): void,
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
