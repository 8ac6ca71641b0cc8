// Compiled with -mavx2 -mbmi2 -mpopcnt; called only after SelectCodePath has asked the CPU.
#include "cpu/avx2_bmi2.h"
#include "cpu/dict_row.h"
#include "cpu/dict_row_avx2.h"
#include "cpu/ibp_row.h"

namespace ibp {

extern const CodePath kAvx2Path = {{IbpRow<Avx2Bmi2>::Ops(), DictRowAvx2<Avx2Bmi2>::Ops()}, "avx2"};

}  // namespace ibp
