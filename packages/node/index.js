'use strict'

const errors = require('./lib/errors.js')
const { Guard } = require('./lib/guard.js')
const { Locker } = require('./lib/locker.js')

module.exports = {
  Guard,
  HeldError: errors.HeldError,
  LockError: errors.LockError,
  Locker,
  LostError: errors.LostError,
  NoQuorumError: errors.NoQuorumError,
  OptionError: errors.OptionError,
  RefusedError: errors.RefusedError,
  TooLateError: errors.TooLateError,
}
