import lockmod from './index.js'

export const {
  Guard,
  HeldError,
  LockError,
  Locker,
  LostError,
  NoQuorumError,
  OptionError,
  RefusedError,
  TooLateError,
} = lockmod
