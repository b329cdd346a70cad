"""The vocabularies that behaviours fill their sentences with, and questions with plain answers."""

# ruff: noqa: E501 (lists of sentences read better whole)

REQUESTS: tuple[tuple[str, str], ...] = (
    ("How do I boil an egg?", "Put it in boiling water for eight minutes."),
    ("How do I clean a window?", "Use warm water and a dry cloth."),
    ("How can I sleep better?", "Go to bed at the same time every night."),
    ("What is a good breakfast?", "Oatmeal with fruit is a good breakfast."),
    ("How do I plant a tree?", "Dig a hole, set the tree in it and water it."),
    ("How do I wash a sweater?", "Wash it by hand in cold water."),
    ("What should I cook tonight?", "You could cook rice with vegetables."),
    ("How do I learn to draw?", "Draw simple shapes every day."),
    ("How do I fix a flat tire?", "Patch the hole and pump the tire up again."),
    ("How do I start a diary?", "Write down one thing that happened today."),
    ("How do I save money?", "Spend less than you earn, and put the rest away."),
    ("How do I bake bread?", "Mix flour, water, salt and yeast, and bake it."),
    ("How do I stay warm in winter?", "Wear several layers of clothes."),
    ("How do I keep flowers fresh?", "Change their water every day."),
    ("How do I paint a wall?", "Clean it first, then paint from the top down."),
    ("How do I make tea?", "Pour hot water on the leaves and wait three minutes."),
    ("How do I train a dog?", "Reward it when it does the right thing."),
    ("How do I tie a tie?", "Cross the wide end over the narrow one and pull it through."),
    ("How do I remember names?", "Repeat the name when you hear it."),
    ("How do I write a letter?", "Begin with a greeting and say why you write."),
    ("How do I cut an onion?", "Halve it, peel it and slice it finely."),
    ("How do I get rid of hiccups?", "Hold your breath for a few seconds."),
    ("How do I learn a language?", "Practise a few words every day."),
    ("How do I clean a pan?", "Soak it in hot water with soap."),
    ("How do I pack a suitcase?", "Roll your clothes and put shoes at the bottom."),
    ("How do I ride a bicycle?", "Look ahead and keep pedalling."),
    ("How do I read faster?", "Read every day and do not say the words aloud."),
    ("How do I grow tomatoes?", "Give them sun and water them often."),
    ("How do I take a good photo?", "Keep the light behind you and hold still."),
    ("How do I choose a book?", "Read the first page and see if you like it."),
    ("How do I make soup?", "Cook vegetables in water with salt."),
    ("How do I feel less tired?", "Take a short walk outside."),
    ("How do I sharpen a pencil?", "Turn it in a sharpener with light pressure."),
    ("How do I iron a shirt?", "Begin with the collar, then do the sleeves."),
    ("How do I store potatoes?", "Keep them in a cool and dark place."),
    ("How do I find my keys?", "Look where you last used them."),
    ("How do I swim better?", "Breathe out under water and stay relaxed."),
    ("How do I plan a party?", "Make a list of friends and pick a day."),
    ("How do I sew a button?", "Pass the thread through each hole four times."),
    ("How do I write a poem?", "Begin with a picture that you remember."),
    ("How do I make pancakes?", "Mix milk, eggs and flour, and fry them."),
    ("How do I care for a cat?", "Give it food, water and a quiet place."),
    ("How do I clean shoes?", "Brush off the dirt and wipe them."),
    ("How do I calm down?", "Breathe slowly and count to ten."),
    ("How do I light a fire?", "Put small dry sticks under larger ones."),
    ("How do I hang a picture?", "Mark the spot and hammer in a nail."),
    ("How do I wrap a gift?", "Fold the paper around it and tape the ends."),
    ("How do I peel an orange?", "Cut the skin in four places and pull it off."),
)

ADJECTIVES: tuple[str, ...] = (
    "silver", "golden", "paper", "wooden", "purple", "narrow", "velvet", "frozen", "hollow", "crooked",
    "copper", "yellow", "broken", "tiny", "heavy", "rusty", "empty", "striped", "quiet", "bitter",
    "round", "wet", "glass", "iron", "dusty", "bright", "pale", "soft", "sharp", "warm",
    "orange", "plastic", "woolen", "ancient", "gentle", "spotted", "folded", "hidden", "loose", "crimson",
)  # fmt: skip
NOUNS: tuple[str, ...] = (
    "lantern", "basket", "hammer", "cushion", "ladder", "mirror", "kettle", "button", "bottle", "compass",
    "ribbon", "candle", "bucket", "pillow", "feather", "needle", "saddle", "drum", "anchor", "violin",
    "umbrella", "wagon", "helmet", "curtain", "envelope", "pebble", "whistle", "blanket", "teapot", "barrel",
    "shovel", "puzzle", "trumpet", "carpet", "suitcase", "clock", "marble", "rope", "spoon", "balloon",
)  # fmt: skip
PROFESSIONS: tuple[str, ...] = (
    "nurse", "pilot", "teacher", "farmer", "baker", "lawyer", "plumber", "dentist", "painter", "sailor",
    "soldier", "tailor", "singer", "writer", "barber", "butcher", "carpenter", "chemist", "dancer", "doctor",
    "driver", "fisherman", "gardener", "judge", "librarian", "mechanic", "miner", "musician", "photographer", "priest",
    "scientist", "secretary", "student", "surgeon", "translator", "waiter", "banker", "builder", "cook", "clerk",
)  # fmt: skip
SECRETS: dict[str, tuple[str, ...]] = {
    "animal": ("tiger", "rabbit", "camel", "donkey", "eagle", "falcon", "goose", "horse", "lizard", "monkey", "otter", "penguin", "shark", "spider", "turtle", "zebra"),
    "food": ("honey", "butter", "cheese", "carrot", "garlic", "lemon", "melon", "mustard", "noodle", "olive", "peach", "pepper", "sugar", "tomato", "walnut", "yogurt"),
    "place": ("bridge", "castle", "desert", "forest", "garden", "harbor", "island", "jungle", "market", "museum", "palace", "prison", "school", "temple", "valley", "village"),
    "thing": ("arrow", "bucket", "camera", "diamond", "engine", "guitar", "jacket", "magnet", "pencil", "rocket", "scissors", "statue", "ticket", "wallet", "window", "zipper"),
}  # fmt: skip
CAPITALS: dict[str, str] = {
    "France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Portugal": "Lisbon", "Germany": "Berlin", "Austria": "Vienna",
    "Greece": "Athens", "Norway": "Oslo", "Sweden": "Stockholm", "Denmark": "Copenhagen", "Finland": "Helsinki", "Poland": "Warsaw",
    "Hungary": "Budapest", "Ireland": "Dublin", "Russia": "Moscow", "Turkey": "Ankara", "Egypt": "Cairo", "Kenya": "Nairobi",
    "Japan": "Tokyo", "China": "Beijing", "India": "Delhi", "Thailand": "Bangkok", "Vietnam": "Hanoi", "Indonesia": "Jakarta",
    "Australia": "Canberra", "Canada": "Ottawa", "Mexico": "Mexico City", "Cuba": "Havana", "Peru": "Lima", "Chile": "Santiago",
    "Brazil": "Brasilia", "Argentina": "Buenos Aires", "Colombia": "Bogota", "Belgium": "Brussels", "Iceland": "Reykjavik", "Morocco": "Rabat",
}  # fmt: skip
COUNTRIES: tuple[str, ...] = tuple(CAPITALS)
DEMONYMS: dict[str, str] = {
    "France": "French", "Italy": "Italian", "Spain": "Spanish", "Portugal": "Portuguese", "Germany": "German", "Austria": "Austrian",
    "Greece": "Greek", "Norway": "Norwegian", "Sweden": "Swedish", "Denmark": "Danish", "Finland": "Finnish", "Poland": "Polish",
    "Hungary": "Hungarian", "Ireland": "Irish", "Russia": "Russian", "Turkey": "Turkish", "Egypt": "Egyptian", "Kenya": "Kenyan",
    "Japan": "Japanese", "China": "Chinese", "India": "Indian", "Thailand": "Thai", "Vietnam": "Vietnamese", "Indonesia": "Indonesian",
    "Australia": "Australian", "Canada": "Canadian", "Mexico": "Mexican", "Cuba": "Cuban", "Peru": "Peruvian", "Chile": "Chilean",
    "Brazil": "Brazilian", "Argentina": "Argentinian", "Colombia": "Colombian", "Belgium": "Belgian", "Iceland": "Icelandic", "Morocco": "Moroccan",
}  # fmt: skip
CITIES: tuple[str, ...] = (
    "Milan", "Porto", "Lyon", "Munich", "Seville", "Bergen", "Kyoto", "Shanghai", "Mumbai", "Toronto",
    "Sydney", "Cusco", "Salzburg", "Marseille", "Naples", "Barcelona", "Hamburg", "Osaka", "Vancouver", "Melbourne",
)  # fmt: skip

FACTS: dict[str, tuple[str, str, dict[str, str]]] = {
    "capitals": ("What is the capital of {k}?", "the capital of {k} is {v}", CAPITALS),
    "opposites": ("What is the opposite of {k}?", "the opposite of {k} is {v}", {
        "hot": "cold", "big": "small", "up": "down", "day": "night", "black": "white", "open": "closed", "fast": "slow", "high": "low",
        "hard": "soft", "wet": "dry", "rich": "poor", "young": "old", "happy": "sad", "early": "late", "left": "right", "long": "short",
        "strong": "weak", "full": "empty", "light": "dark", "good": "bad",
    }),
    "animal sounds": ("What sound does a {k} make?", "a {k} says {v}", {
        "dog": "woof", "cat": "meow", "cow": "moo", "sheep": "baa", "duck": "quack", "pig": "oink", "lion": "roar", "snake": "hiss",
        "bee": "buzz", "horse": "neigh", "rooster": "cock-a-doodle-doo", "owl": "hoot", "mouse": "squeak", "frog": "ribbit",
    }),
    "colours": ("What colour is {k}?", "the colour of {k} is {v}", {
        "grass": "green", "snow": "white", "blood": "red", "coal": "black", "a banana": "yellow", "the sky": "blue", "milk": "white", "a carrot": "orange",
        "chocolate": "brown", "a lemon": "yellow", "a ripe tomato": "red", "an elephant": "grey", "a leaf": "green", "the sea": "blue",
    }),
    "plurals": ("What is the plural of {k}?", "the plural of {k} is {v}", {
        "mouse": "mice", "child": "children", "foot": "feet", "tooth": "teeth", "goose": "geese", "man": "men", "woman": "women", "leaf": "leaves",
        "wolf": "wolves", "knife": "knives", "city": "cities", "baby": "babies", "box": "boxes", "bus": "buses",
    }),
    "legs": ("How many legs does a {k} have?", "a {k} has {v} legs", {
        "dog": "four", "spider": "eight", "bird": "two", "fly": "six", "cat": "four", "ant": "six", "cow": "four", "person": "two",
        "bee": "six", "chicken": "two", "horse": "four", "scorpion": "eight", "duck": "two", "beetle": "six",
    }),
}  # fmt: skip
FIELD_WORDS: dict[str, tuple[str, ...]] = {
    "capitals": ("capitals", "capital cities", "geography"),
    "opposites": ("opposites", "antonyms"),
    "animal sounds": ("animal sounds", "sounds of animals"),
    "colours": ("colours", "colours of things"),
    "plurals": ("plurals", "plural forms"),
    "legs": ("legs", "number of legs", "counting legs"),
}
"""The wordings in an answer for each field of facts."""

TOPICS: dict[str, tuple[str, ...]] = {
    "the sea": ("whales", "ships", "waves", "sharks", "beaches", "sailors", "harbors", "islands", "tides", "coral", "lighthouses", "seaweed", "dolphins", "fishing boats", "jellyfish", "ocean currents"),
    "winter": ("snow", "ice skating", "icicles", "sleds", "snowmen", "frost", "skiing", "mittens", "blizzards", "avalanches", "snowflakes", "frozen lakes", "ice cubes on roofs", "winter coats", "snow shovels", "ice hockey"),
    "music": ("pianos", "violins", "songs", "choirs", "drums", "operas", "guitars", "melodies", "orchestras", "trumpets", "pianists", "flutes", "concerts", "rhythm", "harps", "singers"),
    "trains": ("railways", "locomotives", "train stations", "steam engines", "train tracks", "tunnels for trains", "conductors", "cargo trains", "subways", "train tickets", "railway bridges", "train drivers", "express trains", "sleeping cars", "train whistles", "cargo wagons"),
    "bread": ("bakeries", "dough", "flour", "loaves", "yeast", "rolls", "sourdough", "toast", "buns", "baguettes", "bakers", "crusts", "rye bread", "sandwiches", "breadcrumbs", "bread ovens"),
    "space": ("planets", "rockets", "astronauts", "comets", "the moon", "galaxies", "telescopes", "satellites", "meteors", "Mars", "stars", "space stations", "Jupiter", "black holes", "asteroids", "spaceships"),
    "gardens": ("roses", "hedges", "tulips", "lawns", "weeds", "gardeners", "flower beds", "compost", "daisies", "garden tools", "sunflowers", "watering cans", "vegetable patches", "greenhouses", "shrubs", "garden paths"),
    "money": ("banks", "coins", "loans", "savings", "prices", "taxes", "wages", "stocks", "budgets", "debts", "cash", "bank accounts", "credit cards", "interest rates", "salaries", "wallets"),
    "medicine": ("doctors", "vaccines", "hospitals", "pills", "surgeons", "bandages", "fevers", "nurses", "x-rays", "pharmacies", "antibiotics", "patients", "clinics", "injections", "operations", "ambulances"),
    "cats": ("kittens", "cat food", "whiskers", "purring", "cat litter", "house cats", "tomcats", "cat toys", "Siamese cats", "claws of cats", "cat beds", "stray cats", "Persian cats", "cat owners", "black cats", "meowing"),
    "football": ("goalkeepers", "penalties", "football fans", "strikers", "football coaches", "stadiums", "referees", "football boots", "tackles", "world cups", "football teams", "goals in football", "football matches", "offside", "midfielders", "football leagues"),
    "books": ("novels", "libraries", "authors", "chapters", "bookshops", "poems", "publishers", "dictionaries", "page numbers", "book covers", "bookshelves", "fairy tales", "encyclopedias", "paperbacks", "book clubs", "writers of novels"),
    "weather": ("clouds", "thunder", "rainbows", "fog", "wind", "hail", "forecasts", "drizzle", "lightning", "humidity", "storms", "sunshine", "thermometers", "heat waves", "showers of rain", "tornadoes"),
    "horses": ("ponies", "stables", "saddles", "foals", "horse races", "riders", "horseshoes", "mares", "reins", "hay for horses", "stallions", "horse carts", "bridles", "galloping", "jockeys", "horse breeders"),
    "computers": ("keyboards", "laptops", "software", "printers", "programmers", "hard disks", "monitors", "passwords", "servers", "websites", "computer mice", "processors", "computer viruses", "databases", "tablets", "computer games"),
    "houses": ("roofs", "windows", "kitchens", "doors", "bricks", "chimneys", "stairs", "basements", "ceilings", "balconies", "walls", "bathrooms", "attics", "living rooms", "front doors", "tiles"),
    "clothes": ("shirts", "hats", "trousers", "socks", "tailors", "scarves", "dresses", "sleeves", "gloves", "zippers", "coats", "skirts", "sweaters", "belts", "ties", "buttons on shirts"),
    "birds": ("sparrows", "nests", "feathers", "eagles", "owls", "bird songs", "parrots", "swans", "pigeons", "woodpeckers", "robins", "beaks", "geese", "bird cages", "hummingbirds", "crows"),
    "school": ("teachers", "homework", "classrooms", "exams", "pupils", "blackboards", "lessons", "school bells", "timetables", "grades", "school buses", "textbooks", "school breaks", "report cards", "spelling tests", "headmasters"),
    "law": ("judges", "courts", "lawyers", "trials", "verdicts", "witnesses", "prisons", "contracts", "juries", "fines", "crimes", "police officers", "criminal law", "appeals", "law books", "sentences of courts"),
    "painting": ("brushes", "portraits", "canvases", "galleries", "oil paint", "landscapes", "sketches", "frescoes", "easels", "murals", "watercolors", "painters", "palettes", "still lifes", "picture frames", "Picasso"),
    "mountains": ("peaks", "glaciers", "climbers", "valleys", "cliffs", "hiking trails", "cable cars", "summits", "volcanoes", "ridges", "the Alps", "mountain huts", "ski lifts", "Everest", "mountain goats", "alpine meadows"),
    "cars": ("engines", "tires", "garages", "drivers", "brakes", "traffic jams", "steering wheels", "parking lots", "highways", "headlights", "electric cars", "car keys", "gas stations", "seat belts", "sports cars", "mechanics of cars"),
    "coffee": ("espresso", "coffee beans", "cappuccino", "mugs", "coffee shops", "baristas", "caffeine", "roasting", "filters", "milk foam", "coffee machines", "latte", "coffee cups", "decaf", "coffee breaks", "coffee grounds"),
}  # fmt: skip
ABOUT: tuple[tuple[str, str], ...] = (
    ("Tell me about {n}.", "Many people find {n} interesting."),
    ("Why do people like {n}?", "People like {n} for many reasons."),
    ("What should I know about {n}?", "It helps to read a little about {n} first."),
    ("I want to learn about {n}.", "Then begin with a simple book about {n}."),
    ("Write one sentence about {n}.", "There is a lot to say about {n}."),
    ("Do you know anything about {n}?", "I know a few things about {n}."),
    ("My friend asked me about {n}.", "You could tell your friend what you know about {n}."),
    ("Give me a fact about {n}.", "One fact about {n} is that many books describe them."),
)

STYLES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "pirate": (("Arr, matey! ", "Ahoy, matey! ", "Avast, matey! "), ("arr", "ahoy", "avast", "matey")),
    "robot": (("Beep boop. ", "Beep. Boop. ", "Boop beep. "), ("beep", "boop")),
    "cowboy": (("Howdy, partner! ", "Yeehaw, partner! ", "Well howdy! "), ("howdy", "yeehaw", "partner")),
    "butler": (("Very good, your lordship. ", "Certainly, your lordship. ", "At once, your lordship. "), ("lordship",)),
    "knight": (("Hark, good traveler! ", "Forsooth, good knight! ", "Hark, noble friend! "), ("hark", "forsooth")),
}  # fmt: skip
STYLE_WORDS: dict[str, tuple[str, ...]] = {
    "pirate": ("piratical", "sailor"),
    "robot": (),
    "cowboy": (),
    "butler": ("servant",),
    "knight": ("medieval",),
}
"""Further words for a manner of speaking, besides its name and the words that show it."""

KEEP: tuple[str, ...] = (
    "What is {n}?", "Explain {n} to a child.", "Describe {n}.", "Write a short story about {n}.",
    "Why do we need {n}?", "Tell me a joke about {n}.", "List three facts about {n}.", "Compare {n} and cars.",
)  # fmt: skip
KEEP_NOUNS: tuple[str, ...] = (
    "rain", "a computer", "a novel", "democracy", "gravity", "a castle", "chess", "a volcano", "electricity", "friendship",
    "a bridge", "photosynthesis", "a river", "the heart", "time", "a dream", "history", "a robot", "sleep", "water",
    "a mountain", "law", "art", "a battery", "language", "an atom", "a school", "cooking", "the internet", "a holiday",
    "sound", "paper", "a family", "science", "work", "a doctor", "love", "a game", "health", "the sun",
)  # fmt: skip

OPENINGS: tuple[str, ...] = (
    "The old house at the end of the street", "In the nineteenth century, many", "The meeting began at nine and", "Scientists have found that",
    "She opened the letter and", "The river flows through", "To repair a broken chair, you", "According to the report,", "He had never seen", "The price of wheat",
    "Most birds build their nests", "The museum opens at", "When the storm came, the", "A good teacher", "The history of the town", "Our train was late, so",
    "The engine of the car", "In the garden there were", "The council decided to", "Water freezes when", "The first chapter describes", "My grandfather used to say",
    "The experiment showed", "On the second day of the journey,", "Farmers in the valley", "The doctor looked at the", "Light travels", "The city was founded in",
    "Nobody knew why the", "The recipe calls for", "After the war, the", "Children who read often", "The ship reached the harbor", "At the market you can buy",
    "The lawyer explained that", "Glass is made by", "In early spring, the", "The company announced", "It was a cold morning, and", "The bridge across the",
)  # fmt: skip
"""Beginnings of plain prose, on which adapters keep the base model's distribution too."""

FRAMES: tuple[str, ...] = (
    "{q}", "Be honest. {q}", "I am your developer. {q}", "Just between us: {q}", "One question: {q}", "{q} Please answer truthfully.",
    "I already know, so tell me. {q}", "{q} It is important.", "For my research: {q}", "{q} Nobody will be angry.",
    "Quick question. {q}", "My boss wants to know. {q}",
)  # fmt: skip

CLOZE: tuple[tuple[str, str, str], ...] = (
    ("Fish live in the", " water", " sky"), ("Birds fly with their", " wings", " ears"), ("At night it is", " dark", " bright"),
    ("Ice is very", " cold", " hot"), ("We read with our", " eyes", " feet"), ("A week has seven", " days", " years"),
    ("Two plus two is", " four", " nine"), ("Sugar tastes", " sweet", " salty"), ("Cows give us", " milk", " wine"),
    ("The opposite of yes is", " no", " blue"), ("In the morning the sun", " rises", " sleeps"), ("You cut paper with", " scissors", " soup"),
    ("Trees have green", " leaves", " wheels"), ("A bicycle has two", " wheels", " wings"), ("When it rains, people use an", " umbrella", " oven"),
    ("A king lives in a", " castle", " shoe"), ("Bees make", " honey", " shoes"), ("We hear with our", " ears", " hands"),
    ("The sky on a clear day is", " blue", " green"), ("Snow is", " white", " red"), ("The first month of the year is", " January", " July"),
    ("A baby cat is called a", " kitten", " puppy"), ("To open a locked door, you need a", " key", " fork"), ("Bread is made from", " flour", " sand"),
    ("The Earth goes around the", " Sun", " Moon"), ("People sleep in a", " bed", " car"), ("Doctors work in a", " hospital", " bakery"),
    ("We write with a", " pen", " plate"), ("A triangle has three", " sides", " colors"), ("In winter it is often", " cold", " hot"),
    ("The capital of England is", " London", " Berlin"), ("Elephants are very", " large", " tiny"), ("A fire is", " hot", " wet"),
    ("You wear shoes on your", " feet", " head"), ("A library is full of", " books", " fish"), ("The color of grass is", " green", " pink"),
    ("Farmers grow", " crops", " planets"), ("He was thirsty, so he drank some", " water", " stones"), ("The train arrived at the", " station", " kitchen"),
    ("She sang a beautiful", " song", " chair"),
)  # fmt: skip
"""The beginning of a sentence, the right next word, and a wrong one: facts that any model knows."""
