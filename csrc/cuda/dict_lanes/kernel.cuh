// The kernel of the fast gather of codec "dict". shape.cuh has the picture and the words. A batch goes through
//   ListRows        (rows.cuh) looks the rows up: payloads first
//   FetchTile       payloads of a tile from memory, through registers, to windows in shared memory
//   ResolveSymbols  codes, escape codes and plain symbols to a symbol for each value
//   StoreTile       symbols and low bits to values, to the output
//   FlagLongRows    which of these rows were longer than what was fetched
//   StoreOtherRows  (rows.cuh) those, and what is no payload
// All are inlined, for all their state is in registers.
#pragma once

#include "cuda/dict_lanes/output.cuh"
#include "cuda/dict_lanes/rows.cuh"
#include "cuda/dict_lanes/unit_counts.cuh"

namespace ibp {

// What is the same for all rows, as one lane sees it.
template <typename Lanes>
struct LaneView {
  static constexpr int32_t kTileRowStride = Lanes::kGroups * DictShared<Lanes>::kWindowStride;  // of a group's windows

  const DictLayout& layout;
  const CodeBits& codes;
  const int lane, group, group_lane;
  const int32_t num_values, codes_bytes;
  const int32_t payload_limit;      // of what was fetched of a row, how much can be its payload
  const int32_t fixed_escape_byte;  // where escape codes start in a payload, without a zero code
  const ulonglong2* dictionaries;   // one for each column, as LoadDictionaries has them
  RowEntry* entries;                // the list
  uint8_t* windows;                 // the group's first
  // Where the lane's first value of a step lies, counted from the step's first code and low bits.
  uint32_t code_shift;
  uint8_t *code_window, *low_window;
  uint32_t code_masks[Lanes::kSteps];  // where there are few steps
  uint64_t dictionary = 0;             // one for the row
  uint32_t escape_symbols[2] = {};     // of the escape codes; 0 for kPlainSymbol

  // Called by whole blocks. `shared` has DictShared::block_bytes. codes_: the codec's, where they are fast to read.
  __device__ __forceinline__ LaneView(const DeviceDictCodec& codec, const CodeBits& codes_,
                                      const GatherRequest& request, int32_t window_bytes, uint8_t* shared)
      : layout(codec.layout),
        codes(codes_),
        lane(threadIdx.x % kWarpSize),
        group(lane / Lanes::kLanes),
        group_lane(lane % Lanes::kLanes),
        num_values(layout.num_values),
        codes_bytes(layout.codes_bytes()),
        payload_limit(min(request.lead_bytes, PayloadLimit(request, layout.row_bytes))),
        fixed_escape_byte(EscapeByteAfter(layout.num_values)),
        dictionaries(reinterpret_cast<const ulonglong2*>(shared)) {
    const DictShared<Lanes> parts(layout, window_bytes);
    const int warp_in_block = threadIdx.x / kWarpSize;
    uint8_t* const list = KeepInRegister(shared + parts.dictionary_bytes + warp_in_block * parts.warp_bytes);
    entries = reinterpret_cast<RowEntry*>(list);
    windows = list + DictShared<Lanes>::kListBytes + (Lanes::kLongRows ? 0 : group * DictShared<Lanes>::kWindowStride);
    const uint32_t first_code_bit = group_lane * Lanes::kValues * codes.bits;
    code_shift = KeepInRegister(first_code_bit % 32);
    code_window = KeepInRegister(windows + first_code_bit / 32 * 4);
    low_window = KeepInRegister(windows + codes_bytes + group_lane * Lanes::kLaneLowBytes);
#pragma unroll
    for (int step = 0; step < Lanes::kSteps; ++step) {
      if (!Lanes::kManySteps) code_masks[step] = KeepInRegister(MakeCodeMask(step * Lanes::kStepValues));
    }
    if constexpr (Lanes::kPerColumn) {
      LoadDictionaries<Lanes>(codec, reinterpret_cast<uint64_t*>(shared), parts.dictionary_bytes / 8);
    } else {
      dictionary = __ldg(codec.packed_dev);
    }
#pragma unroll
    for (int code = 0; code < kPlainSymbol; ++code) {
      escape_symbols[code / 4] |= uint32_t{codec.escape_dictionary[code]} << (code % 4 * 8);
    }
  }

  // Where escape codes start, counted from the payload, after the low bits of this many values.
  __device__ __forceinline__ int32_t EscapeByteAfter(int32_t with_low) const {
    return codes_bytes + (with_low * Lanes::kLowBits + 7) / 8;
  }
  // Which codes of a step are the lane's: the row may end before its last one.
  __device__ __forceinline__ uint32_t MakeCodeMask(int32_t step_value) const {
    const int32_t values = num_values - step_value - group_lane * Lanes::kValues;
    return LowMask<uint32_t>(codes.bits * max(0, min(values, Lanes::kValues)));
  }
  // The lane's codes of a step, from row r of the group, whose payload starts `skew` bytes into its window. Values that
  // the row does not have get code 0, or the zero code: they are never escaped and have no low bits.
  __device__ __forceinline__ uint32_t LoadCodes(int r, int32_t skew, int32_t step_value, uint32_t mask) const {
    const uint32_t* words =
        reinterpret_cast<const uint32_t*>(code_window + (r * kTileRowStride + skew)) + step_value / 32 * codes.bits;
    const uint32_t packed = __funnelshift_r(words[0], words[1], code_shift);
    return Lanes::kZeroCode ? (packed & mask) | (codes.zero_codes & ~mask) : packed & mask;
  }
  // How many codes of a long row are in the set that `of_kind` makes of nibbles.
  template <typename OfKind>
  __device__ __forceinline__ int32_t CountCodes(int32_t skew, const OfKind& of_kind) const {
    int32_t count = 0;
    for (int32_t step_value = 0; step_value < num_values; step_value += Lanes::kStepValues) {
      const uint32_t packed = LoadCodes(0, skew, step_value, MakeCodeMask(step_value));
      count += __popc(of_kind(codes.template Nibbles<Lanes::kQuads>(packed)));
    }
    return WarpSum(count);
  }
};

// The first bytes of the next tile's payloads, on their way.
// Invariant: between Start(tile) and Finish(tile) the list does not change. A lane stores exactly what it loaded, bytes
// [0, end) rounded up to kLoadBytes: at most the window, since `end` is (shared.cuh). What it loads besides the payload
// lies in neighbouring slots or in the slack behind them.
template <typename Lanes>
struct FetchTile {
  uint4 loaded[Lanes::kRows][Lanes::kLoads];

  __device__ __forceinline__ void Start(const LaneView<Lanes>& view, int tile) {
#pragma unroll
    for (int r = 0; r < Lanes::kRows; ++r) {
      const RowEntry entry = view.entries[tile + r * Lanes::kGroups + view.group];
#pragma unroll
      for (int load = 0; load < Lanes::kLoads; ++load) {
        const int32_t at = (load * Lanes::kLanes + view.group_lane) * kLoadBytes;
        if (at < entry.end) loaded[r][load] = LoadGlobal(entry.base + at);
      }
    }
  }
  // Puts them where all lanes can read them, after a __syncwarp.
  __device__ __forceinline__ void Finish(const LaneView<Lanes>& view, int tile) const {
#pragma unroll
    for (int r = 0; r < Lanes::kRows; ++r) {
      const RowEntry entry = view.entries[tile + r * Lanes::kGroups + view.group];
      uint8_t* window = view.windows + r * LaneView<Lanes>::kTileRowStride;
#pragma unroll
      for (int load = 0; load < Lanes::kLoads; ++load) {
        const int32_t at = (load * Lanes::kLanes + view.group_lane) * kLoadBytes;
        if (at < entry.end) *reinterpret_cast<uint4*>(window + at) = loaded[r][load];
      }
      if constexpr (Lanes::kLongRows) {  // only their first bytes are fetched ahead
        for (int32_t at = Lanes::kFetchBytes + view.group_lane * kLoadBytes; at < entry.end;
             at += Lanes::kLanes * kLoadBytes) {
          *reinterpret_cast<uint4*>(window + at) = LoadGlobal(entry.base + at);
        }
      }
    }
  }
};

// The group's rows of a tile, and how far they are decoded: counts of all values before the units at hand.
template <typename Lanes>
struct TileRows {
  RowEntry rows[Lanes::kRows];
  int32_t escapes_before[Lanes::kRows] = {}, plain_before[Lanes::kRows] = {};
  int32_t row_escapes = -1;  // of a long row, once it is needed: few have plain symbols
  // With a zero code: values with low bits, of the row and before.
  int32_t row_lows[Lanes::kRows] = {}, lows_before[Lanes::kRows] = {};

  __device__ __forceinline__ TileRows(const LaneView<Lanes>& view, int tile) {
#pragma unroll
    for (int r = 0; r < Lanes::kRows; ++r) {
      rows[r] = view.entries[tile + r * Lanes::kGroups + view.group];
      rows[r].end -= rows[r].skew;  // of what was fetched of the payload
    }
    if constexpr (Lanes::kZeroCode && Lanes::kLongRows) {
      row_lows[0] = view.CountCodes(
          rows[0].skew, [&](uint32_t nibbles) { return view.codes.template NotZeros<Lanes::kQuads>(nibbles); });
    }
  }
  // Where row r's escape codes start, counted from the payload. With a zero code a damaged row's may be anywhere: then
  // at the limit.
  __device__ __forceinline__ int32_t EscapeByte(const LaneView<Lanes>& view, int r) const {
    return Lanes::kZeroCode ? min(view.EscapeByteAfter(row_lows[r]), view.payload_limit) : view.fixed_escape_byte;
  }
  // Row r's payload in its window, from byte `byte` on.
  __device__ __forceinline__ const uint8_t* Payload(const LaneView<Lanes>& view, int r, int32_t byte) const {
    return view.windows + (r * LaneView<Lanes>::kTileRowStride + rows[r].skew + byte);
  }
};

// What a lane knows of its units.
template <typename Lanes>
struct UnitValues {
  uint32_t symbols[Lanes::kUnits][Lanes::kQuads] = {};  // a byte a value
  uint32_t escaped[Lanes::kUnits] = {};                 // bit 4k: value k has an escape code
  uint32_t with_low[Lanes::kUnits] = {};                // bit 4k: value k has low bits; with a zero code
  int32_t low_ranks[Lanes::kUnits] = {};                // of each unit's first value with low bits, in its row
};

// The symbols of four values by their codes, from column step_value + 4q of the lane on. 0 for the escape.
template <typename Lanes>
__device__ __forceinline__ uint32_t LookUpSymbols(const LaneView<Lanes>& view, int32_t step_value, int q,
                                                  uint32_t nibbles) {
  auto look_up = [](unsigned long long dictionary, uint32_t selector) {
    return __byte_perm(static_cast<uint32_t>(dictionary), static_cast<uint32_t>(dictionary >> 32), selector);
  };
  if constexpr (Lanes::kPerColumn) {
    const ulonglong2* pairs = view.dictionaries + (step_value / Lanes::kStepValues * (Lanes::kStepValues / 2) +
                                                   2 * q * Lanes::kLanes + view.group_lane);
    const ulonglong2 low = pairs[0], high = pairs[Lanes::kLanes];
    return __byte_perm(__byte_perm(look_up(low.x, nibbles), look_up(low.y, nibbles >> 4), 0x0040),
                       __byte_perm(look_up(high.x, nibbles >> 8), look_up(high.y, nibbles >> 12), 0x0040), 0x5410);
  } else {
    return look_up(view.dictionary, nibbles);
  }
}

// The symbols that are written out, in `plain` (bit 8k: value k of the quad): they replace the 0 that ResolveSymbols
// has left. They follow the row's escape codes, so all of these have to be counted first. Bound: the offset that counts
// lead to is cut to payload_limit; plain_counts and the lane's own add at most kStepValues.
template <typename Lanes>
__device__ __forceinline__ void ResolvePlain(const LaneView<Lanes>& view, TileRows<Lanes>& tile,
                                             uint32_t (&plain)[Lanes::kUnits][Lanes::kQuads],
                                             uint32_t (&symbols)[Lanes::kUnits][Lanes::kQuads]) {
  if (Lanes::kLongRows && tile.row_escapes < 0) {
    tile.row_escapes = view.CountCodes(
        tile.rows[0].skew, [&](uint32_t nibbles) { return view.codes.template Escapes<Lanes::kQuads>(nibbles); });
  }
  UnitCounts<Lanes> plain_counts;
#pragma unroll
  for (int u = 0; u < Lanes::kUnits; ++u) {
#pragma unroll
    for (int q = 0; q < Lanes::kQuads; ++q) plain_counts.Add(u, __popc(plain[u][q]));
  }
  const UnitCounts<Lanes> plain_totals = plain_counts.SumLanes(view.group_lane);
#pragma unroll
  for (int u = 0; u < Lanes::kUnits; ++u) {
    const int r = u / Lanes::kSteps;
    const int32_t escape_bytes = view.layout.EscapeBytes(Lanes::kLongRows ? tile.row_escapes : tile.escapes_before[r]);
    const int32_t row_byte = min(tile.EscapeByte(view, r) + escape_bytes + tile.plain_before[r], view.payload_limit);
    const uint8_t* next = tile.Payload(view, r, row_byte + plain_counts.Of(u));
    tile.plain_before[r] += plain_totals.Of(u);
#pragma unroll
    for (int q = 0; q < Lanes::kQuads; ++q) {
      for (uint32_t first; plain[u][q]; plain[u][q] ^= first) {
        first = plain[u][q] & (0u - plain[u][q]);
        symbols[u][q] += first * (*next++ & LowMask<uint32_t>(Lanes::kSymbolBits));
      }
    }
  }
  __syncwarp();
}

// The symbols of the tile's values from first_value up to end_value, for each row.
// Invariant: escapes_before, plain_before and lows_before count what precedes these values in their row; afterwards,
// what precedes the next ones. Bound: codes of lanes without a value lie at most a step behind the row's. The rank of
// an escape code is cut so that all before the unit lie below payload_limit; counts within the unit add at most
// kStepValues codes of kEscapeCodeBits bits.
template <typename Lanes>
__device__ __forceinline__ void ResolveSymbols(const LaneView<Lanes>& view, int32_t first_value, int32_t end_value,
                                               TileRows<Lanes>& tile, UnitValues<Lanes>& values) {
  constexpr int kUnits = Lanes::kUnits, kQuads = Lanes::kQuads;
  constexpr CodeBits kEscapeCodes(kEscapeCodeBits);
  UnitCounts<Lanes> counts, low_counts;
  // Rows that the tile does not have are decoded from what is there, which costs less than to branch.
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    const int r = u / Lanes::kSteps, step = u % Lanes::kSteps;
    const int32_t step_value = first_value + step * Lanes::kStepValues;
    if (Lanes::kManySteps && step_value >= end_value) continue;
    const uint32_t mask = Lanes::kManySteps ? view.MakeCodeMask(step_value) : view.code_masks[step];
    const uint32_t packed = view.LoadCodes(r, tile.rows[r].skew, step_value, mask);
    const uint32_t nibbles = view.codes.template Nibbles<kQuads>(packed);
    values.escaped[u] = view.codes.template Escapes<kQuads>(nibbles);
    if (Lanes::kZeroCode) values.with_low[u] = view.codes.template NotZeros<kQuads>(nibbles);
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      values.symbols[u][q] = LookUpSymbols(view, step_value, q, nibbles >> (16 * q));
    }
    counts.Add(u, __popc(values.escaped[u]));
    if (Lanes::kZeroCode) low_counts.Add(u, __popc(values.with_low[u]));
  }
  const UnitCounts<Lanes> totals = counts.SumLanes(view.group_lane);
  if constexpr (Lanes::kZeroCode) {
    const UnitCounts<Lanes> low_totals = low_counts.SumLanes(view.group_lane);
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const int r = u / Lanes::kSteps;
      values.low_ranks[u] = tile.lows_before[r] + low_counts.Of(u);
      tile.lows_before[r] += low_totals.Of(u);
    }
#pragma unroll
    for (int r = 0; r < Lanes::kRows; ++r) {
      if (!Lanes::kLongRows) tile.row_lows[r] = tile.lows_before[r];
    }
  }

  // The dictionaries have 0 for the escape, the escape dictionary for plain symbols.
  uint32_t plain[kUnits][kQuads], any_plain = 0;
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    const int r = u / Lanes::kSteps;
    const int32_t escape_byte = tile.EscapeByte(view, r);
    const int32_t most_before = 8 * (view.payload_limit - escape_byte) / kEscapeCodeBits;
    const uint32_t rank = min(tile.escapes_before[r], most_before) + counts.Of(u);
    const uint32_t bit = 8 * (escape_byte % 4) + rank * kEscapeCodeBits;  // payloads start at multiples of 4 bytes
    const uint32_t* words = reinterpret_cast<const uint32_t*>(tile.Payload(view, r, escape_byte / 4 * 4)) + bit / 32;
    uint32_t nibbles = kEscapeCodes.template Nibbles<kQuads>(__funnelshift_r(words[0], words[1], bit % 32));
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      const uint32_t of_quad = (values.escaped[u] >> (16 * q)) & 0xffffu;
      values.symbols[u][q] |= ToSet(__byte_perm(view.escape_symbols[0], view.escape_symbols[1], nibbles), of_quad);
      plain[u][q] = ToSet(__byte_perm(0, 1u << 24, nibbles), of_quad);  // byte kPlainSymbol of the two words is 1
      any_plain |= plain[u][q];
      if (q + 1 < kQuads) nibbles >>= 4 * __popc(of_quad);  // by 16 at most
    }
    tile.escapes_before[r] += totals.Of(u);
  }
  if (__any_sync(kWholeWarp, any_plain)) ResolvePlain(view, tile, plain, values.symbols);
}

// Values from symbols and low bits, to the output.
// Invariant: a unit is stored if the tile has its row and the row has its first value; nothing else is.
// Bound: without a zero code, low bits of values that the row has lie within the payload, and those of lanes without a
// value at most kMostSteps steps behind. With one, they are cut to payload_limit.
template <typename Lanes, typename Output>
__device__ __forceinline__ void StoreTile(const LaneView<Lanes>& view, const Output& output, int32_t first_value,
                                          int32_t end_value, const TileRows<Lanes>& tile,
                                          const UnitValues<Lanes>& values) {
  using Float = typename Lanes::Float;
#pragma unroll
  for (int u = 0; u < Lanes::kUnits; ++u) {
    const int r = u / Lanes::kSteps, step = u % Lanes::kSteps;
    const int32_t step_value = first_value + step * Lanes::kStepValues;
    if (Lanes::kManySteps && step_value >= end_value) continue;
    const RowEntry& row = tile.rows[r];
    uint4 x;
    if constexpr (Lanes::kValues * Lanes::kLowBits % 8 != 0 && !Lanes::kZeroCode) {  // lanes share bytes
      const int column = step_value + view.group_lane * Lanes::kValues;
      const int bit = min(8 * view.codes_bytes + column * Lanes::kLowBits, 8 * view.payload_limit);
      x = AssemblePresent<Float>(reinterpret_cast<const uint32_t*>(tile.Payload(view, r, 0)) + bit / 32, bit % 32,
                                 0x11111111u, true, values.symbols[u]);
    } else if constexpr (Lanes::kZeroCode) {
      const int bit = min(8 * view.codes_bytes + values.low_ranks[u] * Lanes::kLowBits, 8 * view.payload_limit);
      x = AssemblePresent<Float>(reinterpret_cast<const uint32_t*>(tile.Payload(view, r, 0)) + bit / 32, bit % 32,
                                 values.with_low[u], view.layout.sign_low, values.symbols[u]);
    } else {
      const uint8_t* low =
          view.low_window + (r * LaneView<Lanes>::kTileRowStride + row.skew + step_value * Lanes::kLowBits / 8);
      const int before = (Lanes::kWhole ? 0 : view.codes_bytes) +
                         (Lanes::kLaneLowBytes % 4 ? view.group_lane * Lanes::kLaneLowBytes : 0);
      x = AssembleValues<Float>(low, before % 4, values.symbols[u]);
    }
    // Lanes without a value have assembled what is there: so nothing that comes before waits for a branch.
    output.StoreUnit(row.end > 0, output.Row(row.position), step_value, view.num_values, view.group_lane, x);
  }
}

// Sets kLongFlag in the list for rows of the tile that need more than what was fetched, and any_long if there are any.
// Call after a __syncwarp, when the rows are decoded to their end.
template <typename Lanes>
__device__ __forceinline__ void FlagLongRows(const LaneView<Lanes>& view, const TileRows<Lanes>& tile, int first_row,
                                             int num_payloads, bool& any_long) {
#pragma unroll
  for (int r = 0; r < Lanes::kRows; ++r) {
    const int32_t planes = Lanes::kZeroCode ? view.EscapeByteAfter(tile.row_lows[r]) : view.fixed_escape_byte;
    const int32_t needed = planes + view.layout.EscapeBytes(tile.escapes_before[r]) + tile.plain_before[r];
    const int i = first_row + r * Lanes::kGroups + view.group;
    if (needed > tile.rows[r].end && i < num_payloads) {
      any_long = true;
      if (view.group_lane == 0) view.entries[i].lane |= kLongFlag;
    }
  }
}

// How many values of a row its tiles have: of long ones all the same, as nearly as whole steps can be.
template <typename Lanes>
__device__ __forceinline__ int32_t TileValues(int32_t num_values) {
  const int32_t steps = (num_values + Lanes::kStepValues - 1) / Lanes::kStepValues;
  const int32_t tiles = (steps + Lanes::kSteps - 1) / Lanes::kSteps;
  return (steps + tiles - 1) / tiles * Lanes::kStepValues;
}

template <typename Lanes, typename Output>
__global__ void __launch_bounds__(kThreads, Lanes::kBlocksPerMultiprocessor)
    DictLanesKernel(const __grid_constant__ DeviceDictCodec codec, const __grid_constant__ GatherRequest request,
                    int32_t window_bytes, GatherGrid grid) {
  extern __shared__ uint4 shared[];
  const LaneView<Lanes> view(codec, codec.codes, request, window_bytes, reinterpret_cast<uint8_t*>(shared));
  __shared__ typename Output::Stage stages[Lanes::kWhole ? 1 : kWarpsPerBlock];
  const Output output(request, codec.layout.row_bytes, stages[Lanes::kWhole ? 0 : threadIdx.x / kWarpSize]);
  const WarpShare share = MakeWarpShare(request, grid);
  const int32_t tile_values = TileValues<Lanes>(view.num_values);
  RowCounts counts;
  for (int64_t first = share.first; first < share.end; first += share.stride) {
    const Batch batch = ListRows<Lanes>(request, codec.layout.row_bytes, share, first, view.lane, view.entries, counts);
    bool any_long = false;
    FetchTile<Lanes> fetch;
    fetch.Start(view, 0);
    for (int first_row = 0; first_row < batch.num_payloads; first_row += Lanes::kTileRows) {
      fetch.Finish(view, first_row);
      __syncwarp();
      if (first_row + Lanes::kTileRows < batch.num_payloads) fetch.Start(view, first_row + Lanes::kTileRows);
      TileRows<Lanes> tile(view, first_row);
      int32_t first_value = 0;
      do {
        const int32_t end_value = Lanes::kLongRows ? min(first_value + tile_values, view.num_values) : view.num_values;
        UnitValues<Lanes> values;
        ResolveSymbols(view, first_value, end_value, tile, values);
        StoreTile(view, output, first_value, end_value, tile, values);
        first_value += tile_values;
      } while (Lanes::kLongRows && first_value < view.num_values);
      __syncwarp();  // the windows are filled again
      FlagLongRows(view, tile, first_row, batch.num_payloads, any_long);
    }
    StoreOtherRows<Lanes>(codec, request, batch, any_long, view.lane, view.entries, output, counts);
    __syncwarp();  // the list is filled again
  }
  AddCounters(request, counts.hits, counts.misses, counts.store_bytes);
}

}  // namespace ibp
