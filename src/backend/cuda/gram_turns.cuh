// Who multiplies which tiles (gram_hopper.cuh), and which part of their depth.

#pragma once

namespace sluice::cuda::gram {

constexpr int kBlocks = 2;  // side by side

// A turn of blocks side by side: an item, or a part of its depth. They take whole items in turns;
// what is left when fewer items than such pairs of blocks are left is divided among all of them.
struct Turn {
  int item;
  int begin, end;   // steps of kDepth
  int part, parts;  // of the item
  int left;         // number among the items that are divided
  int first;        // pair of blocks that has the first part
};
constexpr int kMostParts = 4;

// A pair's turns behind those of whole items.
constexpr int kMostTurns = 4;
struct LastTurns {
  Turn turns[kMostTurns];
  int n;
};

// Steps of the items that are left, behind each other, a step of half a tile counted as one and of
// a whole one as two. Each pair of blocks has as many of these, but no item more parts than
// kMostParts. A share is shorter than a whole tile, and so has at most kMostTurns items.
struct Shares {
  int steps, n_full, total, size;  // n_full items of whole tiles, then those of halves

  __device__ Shares(int n_steps, int n_left, int n_halves, int blocks) : steps(n_steps) {
    n_full = max(0, n_left - n_halves);
    total = steps * (n_left + n_full);
    const int longest = n_full > 0 ? 2 * steps : steps;
    if (8 * total > 7 * blocks * longest) {
      size = 0;  // parts cost more than the rest of the blocks would save
    } else if (longest % 8 == 0 && 4 * total <= blocks * longest) {
      size = longest / 4;  // at which all items begin and end
    } else {
      size = max((total + blocks - 1) / blocks, (longest + 2) / 3);
      if (n_full > 0) size += size % 2;
    }
  }
  __device__ int begin_of(int left) const { return steps * (left + min(left, n_full)); }
  __device__ int item_at(int at) const {
    const int in_full = 2 * steps * n_full;
    return at < in_full ? at / (2 * steps) : n_full + (at - in_full) / steps;
  }
};

// This block's turns of what is left, by a thread. The last n_halves items are halves of tiles.
__device__ inline void divide_rest(int n_items, int n_halves, int steps, bool divides,
                                   LastTurns& last) {
  const int blocks = static_cast<int>(gridDim.x) / kBlocks;
  const int block = static_cast<int>(blockIdx.x) / kBlocks;
  const int whole = n_items / blocks * blocks, n_left = n_items - whole;
  const Shares shares(steps, n_left, n_halves, blocks);
  int n = 0;
  if (!divides || shares.size == 0) {
    if (block < n_left) last.turns[n++] = {whole + block, 0, steps, 0, 1, 0, 0};
  } else {
    const int end = min(shares.total, (block + 1) * shares.size);
    for (int at = block * shares.size; at < end && n < kMostTurns;) {
      const int left = shares.item_at(at);
      const int begins = shares.begin_of(left), ends = shares.begin_of(left + 1);
      const int until = min(end, ends), of_step = (ends - begins) / steps;
      const int first = begins / shares.size;
      last.turns[n++] = {whole + left,
                         (at - begins) / of_step,
                         (until - begins) / of_step,
                         block - first,
                         (ends - 1) / shares.size - first + 1,
                         left,
                         first};
      at = until;
    }
  }
  last.n = n;
}

// False when there is none left. Rounds count from 0.
__device__ inline bool turn_at(int n_items, int round, int steps, const LastTurns& last,
                               Turn& turn) {
  const int blocks = static_cast<int>(gridDim.x) / kBlocks, n_whole = n_items / blocks;
  if (round < n_whole) {
    turn = {static_cast<int>(blockIdx.x) / kBlocks + round * blocks, 0, steps, 0, 1, 0, 0};
    return true;
  }
  if (round - n_whole >= last.n) return false;
  turn = last.turns[round - n_whole];
  return true;
}

}  // namespace sluice::cuda::gram
